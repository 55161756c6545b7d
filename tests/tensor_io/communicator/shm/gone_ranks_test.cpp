#include "tensor_io/communicator/shm/gone_ranks.hpp"

#include "tests/catch.hpp"

using troupe::gone_ranks;

TEST_CASE("[T01] a rank that comes and leaves while another looks for it is not gone") {
  // Rank 1 comes, and leaves, after `missing` has listed it. Rank 2 left without coming.
  std::vector<int> missing{1, 2};
  const auto leaves_now = [&](int rank) {
    if (rank == 1) missing = {2};
    return true;
  };
  CHECK(gone_ranks([&] { return missing; }, leaves_now) == std::vector<int>{2});
}

TEST_CASE("[T01] missing ranks that live are not gone, and those that left are") {
  const auto gone = [](const std::vector<int>& left) {
    return gone_ranks(
        [] {
          return std::vector<int>{0, 3};
        },
        [&](int rank) { return std::find(left.begin(), left.end(), rank) != left.end(); });
  };
  CHECK(gone({}).empty());
  CHECK(gone({1, 3}) == std::vector<int>{3});
  CHECK(gone({0, 1, 2, 3}) == std::vector<int>{0, 3});
}
