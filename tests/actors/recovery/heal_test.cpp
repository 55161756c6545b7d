#include "actors/recovery/heal.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>

#include "tests/catch.hpp"
#include "tests/support/rank_threads.hpp"

using namespace troupe;
using namespace troupe::test;

TEST_CASE("[L05] newcomers get tensors of any size, in pieces, from one donor or several") {
  for (const bool first_alone : {false, true}) {
    HealRoles roles;
    roles.first_donor = 1;
    roles.newcomer = {true, false, false, true};
    roles.first_alone = first_alone;
    GroupOptions group;
    group.backend = all_backends().front();
    group.world_size = 4;
    run_ranks(group, [&](Communicator& communicator) {
      // Less than a piece of 1 MiB, just one, one and a few bytes, several; and one that is not contiguous.
      std::vector<at::Tensor> right{at::arange(7, at::kDouble), at::arange(1 << 18, at::kFloat),
                                    at::arange((1 << 18) + 3, at::kFloat), at::arange(700'000, at::kFloat),
                                    at::arange(600'000, at::kFloat).view({2, 300'000}).t()};
      const bool has_it = !roles.newcomer[static_cast<std::size_t>(communicator.rank())];
      NamedTensors mine;
      for (const auto& tensor : right)
        mine.emplace_back(std::to_string(mine.size()), has_it ? tensor.clone() : at::zeros_like(tensor));
      heal_tensors(mine, roles, communicator, "model");
      for (std::size_t i = 0; i < right.size(); ++i) {
        require(at::equal(mine[i].second, right[i]), "tensor " + mine[i].first + " is the donors'");
      }
    });
  }
}
