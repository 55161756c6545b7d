#include "actors/coordinator/diagnosis.hpp"

#include "actors/rank/rank_supervisor.hpp"
#include "tensor_io/communicator/choice/single_communicator.hpp"
#include "tests/catch.hpp"

using namespace troupe;

namespace {
CollectiveState waiting(int rank, std::uint64_t sequence, std::uint64_t fingerprint, std::string what) {
  CollectiveState state;
  state.rank = rank;
  state.communicator = "program";
  state.in_flight = true;
  state.sequence = sequence;
  state.fingerprint = fingerprint;
  state.what = std::move(what);
  state.step = 3;
  return state;
}
CollectiveState computing(int rank, std::uint64_t finished) {
  CollectiveState state;
  state.rank = rank;
  state.communicator = "program";
  state.sequence = finished;
  return state;
}
}  // namespace

TEST_CASE("[D13] the rank in another collective than the majority is named with both operations") {
  const std::vector<CollectiveState> states{waiting(0, 5, 1, "all_gather of 64 Byte (vote, step 3)"),
                                            waiting(1, 5, 2, "all_reduce of 10 Float (user, step 3)"),
                                            waiting(2, 5, 1, "all_gather of 64 Byte (vote, step 3)")};
  const auto accused = diagnose(states, 3);
  REQUIRE(accused);
  CHECK(accused->code == ErrorCode::mismatch);
  CHECK(accused->rank == 1);
  CHECK_THAT(accused->cause,
             Catch::Contains("rank 1 is in all_reduce of 10") && Catch::Contains("ranks 0, 2 wait in all_gather"));
}

TEST_CASE("[D13] of two ranks that differ the higher one is named, since rank 0's order is the plan") {
  const auto accused =
      diagnose(std::vector<CollectiveState>{waiting(0, 5, 9, "barrier"), waiting(1, 5, 2, "broadcast")}, 2);
  REQUIRE(accused);
  CHECK(accused->rank == 1);
  CHECK_THAT(accused->cause, Catch::Contains("rank 1 is in broadcast, while rank 0 waits in barrier"));
}

TEST_CASE("[D13] several ranks in another collective than the majority are named together") {
  std::vector<CollectiveState> states;
  for (const int rank : {0, 1, 2, 3, 4})
    states.push_back(waiting(rank, 5, rank < 2 ? 1 : 2, rank < 2 ? "barrier" : "x"));
  const auto accused = diagnose(states, 5);
  REQUIRE(accused);
  CHECK_THAT(accused->cause, Catch::Contains("ranks 0, 1 are in barrier, while ranks 2, 3, 4 wait in x"));
}

TEST_CASE("[D13] a rank that left its loop while others wait is named") {
  auto gone = computing(1, 4);
  gone.ended = true;
  const auto accused = diagnose(std::vector<CollectiveState>{waiting(0, 5, 1, "barrier"), gone}, 2);
  REQUIRE(accused);
  CHECK(accused->rank == 1);
  CHECK_THAT(accused->cause, Catch::Contains("left the training loop"));
}

TEST_CASE("[D13] a rank that is behind is slow, and nobody is accused") {
  CHECK_FALSE(diagnose(std::vector<CollectiveState>{waiting(0, 5, 1, "barrier"), computing(1, 4)}, 2));
  CHECK_FALSE(diagnose(std::vector<CollectiveState>{waiting(0, 5, 1, "barrier"), waiting(1, 4, 3, "vote")}, 2));
  CHECK_FALSE(diagnose(std::vector<CollectiveState>{waiting(0, 5, 1, "barrier"), waiting(1, 5, 1, "barrier")}, 2));
  CHECK_FALSE(diagnose(std::vector<CollectiveState>{computing(0, 5), computing(1, 4)}, 2));
  CHECK_FALSE(diagnose({}, 2));
}

TEST_CASE(
    "[D13] a rank whose Compute stands in a collective that the others never launched is named across communicators") {
  auto stuck = waiting(0, 7, 1, "all_reduce of 10 Float (bucket 0, step 3)");
  stuck.communicator = "buckets";
  stuck.awaits_reducer = true;
  stuck.program_sequence = 4;
  auto apart = computing(1, 6);
  apart.communicator = "buckets";
  apart.program_sequence = 5;
  apart.program_what = "all_gather of 64 Byte (user, step 3)";
  const auto accused = diagnose(std::vector<CollectiveState>{stuck, apart}, 2);
  REQUIRE(accused);
  CHECK(accused->rank == 1);
  CHECK_THAT(accused->cause, Catch::Contains("rank 1 is in all_gather of 64 Byte") &&
                                 Catch::Contains("rank 0 did not launch") && Catch::Contains("bucket 0"));
  auto third = apart;
  third.rank = 2;
  const auto fewer = diagnose(std::vector<CollectiveState>{stuck, apart, third}, 3);
  REQUIRE(fewer);
  CHECK(fewer->rank == 0);

  CHECK_FALSE(diagnose(std::vector<CollectiveState>{stuck, apart}, 3));  // the third may say who is alone
  auto gather = stuck;
  gather.communicator = "gathers of host a";
  CHECK_FALSE(diagnose(std::vector<CollectiveState>{gather, apart}, 2));  // its Compute waits for something else

  // It computes still, and may come there; it has been there; the other has launched the bucket; nobody knows of such a
  // collective.
  auto computes = stuck;
  computes.awaits_reducer = false;
  CHECK_FALSE(diagnose(std::vector<CollectiveState>{computes, apart}, 2));
  auto was_there = stuck;
  was_there.program_sequence = 5;
  CHECK_FALSE(diagnose(std::vector<CollectiveState>{was_there, apart}, 2));
  auto launched = apart;
  launched.in_flight = true;
  launched.sequence = 7;
  launched.fingerprint = 1;
  CHECK_FALSE(diagnose(std::vector<CollectiveState>{stuck, launched}, 2));
  auto nowhere = apart;
  nowhere.program_what.clear();
  CHECK_FALSE(diagnose(std::vector<CollectiveState>{stuck, nowhere}, 2));
}

// Snapshots go from buddy to buddy, and their lengths differ: a slow exchange was once taken for different collectives.
TEST_CASE("[D13] sends and receives say nothing about who keeps the others waiting") {
  RankSupervisorState supervisor;
  supervisor.options.status = std::make_shared<RankStatus>();
  const auto communicator = std::make_shared<SingleCommunicator>(CommunicatorOptions{});
  auto& ledger = communicator->ledger();
  const auto state = [&] {
    return supervisor.state_of({"program", 1, communicator}, std::chrono::steady_clock::now()).value();
  };
  const auto begin = [&](CollectiveKind kind, std::int64_t numel) {
    CollectiveRecord record;
    record.kind = kind;
    record.numel = numel;
    ledger.begin(record);
  };
  begin(CollectiveKind::all_gather, 4);
  CHECK(state().in_flight);
  ledger.finish();
  CHECK(state().sequence == 1);
  for (const auto kind : {CollectiveKind::send, CollectiveKind::recv}) {
    begin(kind, 1000);
    CHECK_FALSE(state().in_flight);
    CHECK(state().sequence == 1);
    ledger.finish();
    CHECK(state().sequence == 1);  // other ranks may have sent more, or nothing
  }
  begin(CollectiveKind::barrier, 0);
  CHECK(state().in_flight);
  CHECK(state().sequence == 2);
}
