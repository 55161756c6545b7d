// Processes that leave on notice or are lost, as the coordinator sees them: ranks and an agent that say what the test
// has them say.
#include <memory>
#include <optional>

#include "actors/coordinator/coordinator.hpp"
#include "tests/catch.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

CoordinatorOptions options_with_leaves(int world_size) {
  CoordinatorOptions options;
  options.job_id = "job";
  options.world_size = world_size;
  options.recovery.enabled = true;
  options.recovery.suspect_after = options.recovery.fence_after = 60s;  // no heartbeats come here
  return options;
}

struct FakePeer {
  FakePeer(caf::actor_system& system, CoordinatorActor address) : self(system), coordinator(std::move(address)) {}
  template <class Message>
  Message next() {
    std::optional<Message> found;
    self->receive([&](const Message& message) { found = message; },
                  caf::after(20s) >> [] { FAIL("it does not come"); });
    return *found;
  }
  template <class Message>
  void says(const Message& message) {
    self->send(coordinator, message);
  }

  caf::scoped_actor self;
  CoordinatorActor coordinator;
};

struct FakeRank : FakePeer {
  FakeRank(caf::actor_system& system, const CoordinatorActor& address, int slot)
      : FakePeer(system, address), process{slot, static_cast<std::uint64_t>(10 + slot)} {}
  std::string join(int world_size, bool spare = false, std::uint64_t generation = 0) {
    std::string why = "no answer";
    self->request(coordinator, 10s, JoinJob{"job", process, world_size, "host", "", "", spare, generation})
        .receive([&](const JoinAccepted& accepted) { why = accepted.refused; }, [](caf::error&) {});
    return why;
  }
  void parts(const std::string& save = {}) {
    RankInterrupted report;
    report.process = process;
    report.generation = 1;
    report.steps_done = 5;
    report.parted = true;
    report.leaves = process.slot == 1;
    report.save = save;
    says(report);
  }

  const ProcessId process;
};

// Two ranks of which the second is to leave, and their agent.
struct LeavingJob {
  explicit LeavingJob(const CoordinatorOptions& options = options_with_leaves(2))
      : coordinator(system.spawn(troupe::coordinator, options)),
        agent(system, coordinator),
        first(system, coordinator, 0),
        second(system, coordinator, 1) {
    std::string why = "no answer";
    agent.self->request(coordinator, 10s, JoinNode{"job", "host", {{0, 10}, {1, 11}, {2, 12}}})
        .receive([&](const std::string& answer) { why = answer; }, [](caf::error&) {});
    REQUIRE(why.empty());
  }
  ~LeavingJob() { caf::anon_send_exit(coordinator, caf::exit_reason::user_shutdown); }
  void form() {
    REQUIRE(first.join(2).empty());
    REQUIRE(second.join(2).empty());
    CHECK(first.next<Membership>().world_size() == 2);
    agent.says(LeaveNotice{second.process, "SIGTERM"});
    CHECK(second.next<LeaveJob>().generation == 1);
  }

  caf::actor_system_config config;
  caf::actor_system system{config};
  CoordinatorActor coordinator;
  FakePeer agent;
  FakeRank first, second;
};

}  // namespace

TEST_CASE("[L04] a spare that is to leave before the job has formed takes no rank's place in it") {
  LeavingJob job;
  FakeRank spare(job.system, job.coordinator, 2);
  REQUIRE(job.first.join(2).empty());
  REQUIRE(spare.join(2, true).empty());
  job.agent.says(LeaveNotice{spare.process, "SIGTERM"});
  CHECK(spare.next<AbortJob>().report.code == ErrorCode::ok);
  REQUIRE(job.second.join(2).empty());
  CHECK(job.first.next<Membership>().world_size() == 2);
}

TEST_CASE("[L04] a rank that has left and missed the word, with its connection, hears it when it comes back") {
  LeavingJob job;
  job.form();
  job.first.parts();
  job.second.parts();
  CHECK(job.first.next<Membership>().world_size() == 1);
  CHECK(job.second.next<AbortJob>().report.code == ErrorCode::ok);
  FakeRank back(job.system, job.coordinator, 1);
  CHECK(back.join(2, false, 1).empty());
  CHECK_THAT(back.next<AbortJob>().report.cause, Catch::Contains("it leaves the job (SIGTERM)"));
}

TEST_CASE("[L04] a rank that hangs behind the vote after which one leaves does not hold up the job for ever") {
  auto options = options_with_leaves(2);
  options.recovery.hang_after = 100ms;
  LeavingJob job(options);
  job.form();
  job.second.parts();
  CHECK_THAT(job.first.next<InterruptRanks>().reason.cause, Catch::Contains("did not finish the step"));
}

TEST_CASE("[L04] a save that its leaving writer does not end fails for the others") {
  auto options = options_with_leaves(2);
  options.recovery.leaver_saves = 50ms;
  LeavingJob job(options);
  job.form();
  PartSaved part;
  part.process = job.first.process;
  part.generation = 1;
  part.attempt = {5, "a"};
  part.ranks = 2;
  part.report.code = ErrorCode::ok;
  job.first.says(part);
  job.first.parts("a");
  job.second.parts("a");
  CHECK(job.first.next<Membership>().world_size() == 1);
  CHECK(job.second.next<AbortJob>().report.code == ErrorCode::ok);
  const auto ended = job.first.next<SaveEnded>();
  CHECK(ended.attempt.id == "a");
  CHECK_THAT(ended.report.cause, Catch::Contains("it has left"));
}

TEST_CASE("[L04] a job that is stopped while a host is to leave was stopped, and one that can't do without it parks") {
  const bool stopped = GENERATE(true, false);
  LeavingJob job;
  job.form();
  for (auto* rank : {&job.first, &job.second}) {
    ErrorReport report{.code = ErrorCode::interrupted, .cause = stopped ? kAskedToStop : ""};
    rank->says(RankEnded{rank->process, report});
  }
  const auto over = job.agent.next<JobOver>();
  CHECK(over.report.code == (stopped ? ErrorCode::ok : ErrorCode::parked));
  CHECK(over.exit_code == (stopped ? 0 : 75));
}

TEST_CASE("[L04] a rank whose death is proved when the others have gone on without it is started again") {
  LeavingJob job(options_with_leaves(3));
  auto lost = std::make_unique<FakeRank>(job.system, job.coordinator, 2);
  for (auto* rank : {&job.first, &job.second, lost.get()}) REQUIRE(rank->join(3).empty());
  for (auto* rank : {&job.first, &job.second}) CHECK(rank->next<Membership>().world_size() == 3);
  const auto process = lost->process;
  lost.reset();  // its connection closes, and its agent says nothing
  for (auto* rank : {&job.first, &job.second}) {
    (void)rank->next<InterruptRanks>();
    RankInterrupted report;
    report.process = rank->process;
    report.generation = 1;
    report.steps_done = 5;
    rank->says(report);
  }
  CHECK(job.first.next<Membership>().world_size() == 2);
  job.agent.says(RankExited{process, 9});
  const auto order = job.agent.next<StartRank>();
  CHECK(order.process.slot == 2);
  CHECK(order.process.incarnation != process.incarnation);
}
