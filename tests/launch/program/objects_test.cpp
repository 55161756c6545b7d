// What users add up over ranks: tensors, and objects of types of their own.
#include <cstdint>
#include <map>
#include <string>

#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"

using namespace troupe;

namespace {

struct UserCounter {
  std::int64_t seen = 0;
  double loss = 0;
  std::map<std::string, std::int64_t> by_class;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(seen, loss, by_class);
  }
};

UserCounter counter_of(int rank) {
  return {rank + 1, 0.1 * (rank + 1), {{"class " + std::to_string(rank), 10 * (rank + 1)}, {"all", 1}}};
}

UserCounter add_counters(UserCounter a, const UserCounter& b) {
  a.seen += b.seen;
  a.loss += b.loss;
  for (const auto& [name, count] : b.by_class) a.by_class[name] += count;
  return a;
}

}  // namespace

TEST_CASE("[T03] a user's counters are added up and gathered over ranks, on one rank or on all") {
  const int n = GENERATE(1, 2, 3);
  double expected_loss = 0.1;  // added in rank order
  for (int r = 1; r < n; ++r) expected_loss += 0.1 * (r + 1);
  const auto errors = testing::run_program(n, Config{}, [&](Rank& rank) {
    const auto mine = counter_of(rank.rank());
    const auto total = rank.all_reduce_object(mine, add_counters);
    CHECK(total.seen == n * (n + 1) / 2);
    CHECK(total.loss == expected_loss);
    CHECK(total.by_class.at("all") == n);
    CHECK(total.by_class.at("class " + std::to_string(n - 1)) == 10 * n);
    const auto on_last = rank.reduce_object(mine, add_counters, n - 1);
    CHECK(on_last.has_value() == (rank.rank() == n - 1));
    if (on_last) CHECK(on_last->seen == total.seen);
    const auto all = rank.all_gather_object(mine);
    CHECK(all.size() == static_cast<std::size_t>(n));
    for (int r = 0; r < n; ++r) CHECK(all[static_cast<std::size_t>(r)].seen == r + 1);
    const auto here = rank.gather_object(mine, 0);
    CHECK(here.size() == (rank.rank() == 0 ? static_cast<std::size_t>(n) : 0));
    CHECK(rank.broadcast_object(mine, n - 1).seen == n);
  });
  for (const auto& error : errors) CHECK(error.empty());
}

TEST_CASE("[T03] a user's tensors are summed and averaged over ranks") {
  const int n = GENERATE(1, 2, 3);
  const auto errors = testing::run_program(n, Config{}, [&](Rank& rank) {
    auto sum = at::full({5}, rank.rank() + 1.0), mean = sum.clone(), root = sum.clone();
    rank.all_reduce(sum);
    CHECK(sum.equal(at::full({5}, n * (n + 1) / 2.0)));
    rank.all_reduce(mean, ReduceOp::avg);
    CHECK(mean.allclose(at::full({5}, (n + 1) / 2.0)));
    rank.reduce(root, 0);
    CHECK(root.equal(rank.rank() == 0 ? sum : at::full({5}, rank.rank() + 1.0)));
  });
  for (const auto& error : errors) CHECK(error.empty());
}
