#include "actors/coordinator/stall_inspector.hpp"

#include "tests/catch.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

const StallInspector::Time kNow{1h};

CollectiveState stalled_in(int rank, std::uint64_t sequence, std::uint64_t fingerprint,
                           const std::string& communicator) {
  CollectiveState state;
  state.rank = rank;
  state.communicator = communicator;
  state.in_flight = true;
  state.sequence = sequence;
  state.fingerprint = fingerprint;
  state.what = "all_reduce";
  return state;
}

}  // namespace

TEST_CASE("[D13] all ranks are asked once about a collective, and again after a second") {
  StallInspector stalls;
  CHECK(stalls.report(stalled_in(0, 5, 1, "buckets"), kNow));
  CHECK_FALSE(stalls.report(stalled_in(1, 5, 1, "buckets"), kNow + 999ms));
  CHECK(stalls.report(stalled_in(1, 5, 1, "buckets"), kNow + 1s));
  CHECK(stalls.report(stalled_in(1, 6, 1, "buckets"), kNow + 1s));
  CHECK(stalls.report(stalled_in(1, 5, 1, "program"), kNow + 1s));
  auto on_its_way = stalled_in(2, 7, 1, "buckets");
  on_its_way.in_flight = false;
  CHECK_FALSE(stalls.report(on_its_way, kNow + 1s));
  CHECK(stalls.most_reports() == 3);
}

TEST_CASE("[D13] a communicator is judged when it has news, beside no other communicator's reports") {
  StallInspector stalls;
  stalls.report(stalled_in(0, 5, 1, "buckets"), kNow);
  stalls.report(stalled_in(1, 5, 2, "program"), kNow);
  CHECK_FALSE(stalls.judge(2));
  stalls.report(stalled_in(1, 5, 2, "buckets"), kNow);
  const auto accused = stalls.judge(2);
  REQUIRE(accused);
  CHECK(accused->rank == 1);
  CHECK_FALSE(stalls.judge(2));
  stalls.clear();
  CHECK(stalls.most_reports() == 0);
}
