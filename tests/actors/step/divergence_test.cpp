#include "actors/step/divergence.hpp"

#include "tests/catch.hpp"

using namespace troupe;

namespace {
std::vector<Vote> votes(const std::vector<std::uint64_t>& hashes) {
  std::vector<Vote> all(hashes.size());
  for (std::size_t r = 0; r < hashes.size(); ++r) all[r].parameter_hash = hashes[r];
  return all;
}
}  // namespace

TEST_CASE("[L05] fault 31: replicas that agree, or were not compared, are no divergence") {
  CHECK_FALSE(find_divergence(votes({7, 7, 7})));
  CHECK_FALSE(find_divergence(votes({0, 0})));
  CHECK_FALSE(find_divergence(votes({7})));
}

TEST_CASE("[L05] fault 31: whoever differs from more than half of the ranks is named") {
  const auto found = find_divergence(votes({9, 7, 7, 5, 7}));
  REQUIRE(found);
  CHECK(found->majority);
  CHECK((found->diverged == std::vector<int>{0, 3}));
  CHECK((found->trusted == std::vector<int>{1, 2, 4}));
  CHECK(found->describe() == "ranks 0, 3 hold different parameters from ranks 1, 2, 4");
}

TEST_CASE("[L05] fault 31: without more than half of the ranks nobody is right, and rank 0's side stands first") {
  const auto two = find_divergence(votes({7, 9}));
  REQUIRE(two);
  CHECK_FALSE(two->majority);
  CHECK(two->describe() == "rank 1 holds different parameters from rank 0");
  const auto four = find_divergence(votes({7, 9, 9, 7}));
  REQUIRE(four);
  CHECK_FALSE(four->majority);
  CHECK((four->diverged == std::vector<int>{1, 2}));
  const auto all = find_divergence(votes({3, 9, 9, 7}));  // the largest side has half, not more
  REQUIRE(all);
  CHECK_FALSE(all->majority);
  CHECK((all->trusted == std::vector<int>{0}));
}
