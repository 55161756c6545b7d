#include "actors/recovery/heal.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>

#include "actors/recovery/heal_header.hpp"
#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/rank_threads.hpp"

using namespace troupe;
using namespace troupe::test;

TEST_CASE("[K05] a donor's texts and counters are refused with the name if they are not what it promises") {
  HealHeader good;
  good.strategy = {{"local_steps.last", "1"}, {"ddp.bucket_order", "1 0"}, {"other", "x"}};
  good.notes = {{"best", "0.5"}, {"best_step", "-1"}, {"stop_signal", "15"}, {"data_cursor", "7 1 2"}};
  const auto read = HealHeader::of(good.to_text());
  CHECK(read.strategy == good.strategy);
  CHECK(read.notes == good.notes);
  const auto refused = [](const HealHeader& header, const std::string& name) {
    INFO(name);
    try {
      HealHeader::of(header.to_text());
      FAIL_CHECK("it is accepted");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::bad_data);
      CHECK_THAT(error.what(), Catch::Contains(name));
    }
  };
  const std::pair<const char*, const char*> texts[] = {{"best", "x"},
                                                       {"best_step", "x"},
                                                       {"stop_signal", "99999999999"},
                                                       {"data_cursor", "7 1"},
                                                       {"uneven_round", "a"},
                                                       {"local_steps.last", "-1"},
                                                       {"local_steps.next", "1 x"},
                                                       {"local_steps.outer_steps", ""},
                                                       {"switching.switches", "x"},
                                                       {"step", "9223372036854775808"}};
  for (const auto& [name, text] : texts) {
    auto bad = good;
    bad.notes[name] = text;
    refused(bad, name);
    bad = good;
    bad.strategy[name] = text;
    refused(bad, name);
  }
  auto bad = good;
  bad.loss_scale = 0;
  refused(bad, "loss_scale");
  bad = good;
  bad.growth_tracker = -1;
  refused(bad, "growth_tracker");
}

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
