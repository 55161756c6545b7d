// A process that has the job's keys, is a member and the agent of a host, and speaks in others' names.
#include "launch/network/actor_system.hpp"
#include "launch/network/job_keys.hpp"
#include "tests/catch.hpp"
#include "tests/support/logged_lines.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

// A process that is connected to the job. Its actor is rank and agent at once.
struct Peer {
  Peer(const JobKeys& keys, std::uint16_t port)
      : config(true, keys), system(config), coordinator(connect_coordinator(system, "127.0.0.1", port, 10s)) {}

  std::string join(const JoinJob& join) {
    std::string why = "no answer";
    self->request(coordinator, 10s, join)
        .receive([&](const JoinAccepted& accepted) { why = accepted.refused; }, [](caf::error&) {});
    return why;
  }
  std::string join(const JoinNode& node) {
    std::string why = "no answer";
    self->request(coordinator, 10s, node).receive([&](std::string& said) { why = said; }, [](caf::error&) {});
    return why;
  }
  /// What was sent before has been read.
  bool is_heard() {
    bool answered = false;
    self->request(coordinator, 10s, GetValue{kRunKey})
        .receive([&](bool, const std::string&) { answered = true; }, [](caf::error&) {});
    return answered;
  }
  std::string value(const std::string& key) {
    std::string found;
    self->request(coordinator, 10s, GetValue{key})
        .receive([&](bool, std::string& text) { found = text; }, [](caf::error&) {});
    return found;
  }
  /// Whether the job has been disturbed, by what this rank has heard.
  bool is_disturbed() {
    bool disturbed = !is_heard(), empty = false;
    const auto bad = [&](const auto&) { disturbed = true; };
    while (!empty)
      self->receive([&](const InterruptRanks& message) { bad(message); },
                    [&](const AbortJob& message) { bad(message); }, [&](const FenceRank& message) { bad(message); },
                    [&](const SaveEnded& message) { bad(message); }, [&](const StartRank& message) { bad(message); },
                    [&](const KillRank& message) { bad(message); }, [&](const LeaveLoop& message) { bad(message); },
                    [](const Membership&) {}, [](const CoordinatorBeat&) {}, caf::after(0s) >> [&] { empty = true; });
    return disturbed;
  }

  ActorSystemConfig config;
  caf::actor_system system;
  caf::scoped_actor self{system};
  CoordinatorActor coordinator;
};

}  // namespace

TEST_CASE("[K01] a message counts only from whom it may come: a process with keys that lies is not heard") {
  const KeyMaker job;
  testing::LoggedLines lines;
  ActorSystemConfig config(true, job.keys_for("coordinator"), [&](const std::string& line) { lines.add(line); });
  caf::actor_system system(config);
  CoordinatorOptions options;
  options.job_id = "job";
  options.world_size = 2;
  options.recovery.enabled = true;
  options.recovery.fence_after = 1h;
  options.log = [&](const std::string& line) { lines.add(line); };
  const auto actor = system.spawn(coordinator, options);
  const auto port = publish_coordinator(system, actor, 0, "127.0.0.1");

  Peer honest(job.keys_for("a"), port), liar(job.keys_for("b"), port);
  const ProcessId process{0, 10};
  CHECK(honest.join(JoinNode{"job", "a", {process}}).empty());
  CHECK(liar.join(JoinNode{"job", "b", {{1, 11}}}).empty());
  CHECK(honest.join(JoinJob{"job", process, 2, "a", "build", "config"}).empty());
  CHECK(liar.join(JoinJob{"job", {1, 11}, 2, "b", "build", "config"}).empty());
  std::uint64_t generation = 0;
  honest.self->receive([&](const Membership& next) { generation = next.generation; });
  REQUIRE(generation > 0);
  honest.self->send(honest.coordinator, PutValue{"g1/address", "a's"});
  CHECK(honest.value("g1/address") == "a's");

  const auto says = [&](const auto& lie, const std::string& dropped) {
    INFO(dropped);
    liar.self->send(liar.coordinator, lie);
    CHECK(liar.is_heard());
    CHECK(lines.has("dropped a " + dropped));
    CHECK_FALSE(honest.is_disturbed());
  };
  SECTION("in the name of another rank") {
    CollectiveState waits;
    waits.generation = generation;
    waits.communicator = kGradientCommunicator;
    SaveAttempt attempt{7, "run"};
    says(Heartbeat{process, generation, 1'000'000}, "Heartbeat in the name of slot 0, from another process");
    says(RankInterrupted{.process = process, .generation = generation}, "RankInterrupted in the name of slot 0");
    // Of more than two lies the second, the fourth and so on are in the log.
    liar.self->send(liar.coordinator, PartSaved{process, generation, attempt, 0, 2, false, {}});
    says(CheckpointPublished{process, {attempt, {}, {}}}, "CheckpointPublished in the name of slot 0");
    for (int i = 0; i < 3; ++i)
      liar.self->send(liar.coordinator, LoopDone{.process = process, .generation = generation});
    says(waits, "CollectiveState of rank 0, from another process (8 such messages so far)");
  }
  SECTION("that a rank has ended") {
    says(RankEnded{process, {.code = ErrorCode::user, .cause = "a lie"}}, "RankEnded in the name of slot 0");
    says(RankExited{process, 9}, "RankExited of slot 0, not from its host's agent");
  }
  SECTION("in a value's key") {
    says(PutValue{"g1/address", "the liar's"}, "PutValue of slot 0's key, from slot 1");
    CHECK(honest.value("g1/address") == "a's");
    caf::scoped_actor stranger(liar.system);
    stranger->send(liar.coordinator, PutValue{"g1/other", "a stranger's"});
    CHECK(liar.is_heard());
    CHECK(lines.has("dropped a PutValue of a process that has not joined (2 such messages so far)"));
    CHECK(honest.value("g1/other").empty());
  }
  SECTION("to take a place") {
    caf::scoped_actor other(liar.system);
    other->request(liar.coordinator, 10s, JoinNode{"job", "a", {}})
        .receive([](const std::string& why) { CHECK_THAT(why, Catch::Contains("a has joined already")); },
                 [](caf::error&) { FAIL("no answer"); });
    CHECK_THAT(liar.join(JoinJob{"job", {0, 99}, 2, "a", "build", "config"}), Catch::Contains("has joined already"));
    CHECK(liar.join(JoinJob{"job", {5, 99}, 2, "b", "build", "config", true}).empty());
    CHECK(lines.has("slot 5 on b joins as a spare"));
  }
  SECTION("that ends an actor, for CAF") {
    liar.self->send_exit(liar.coordinator, caf::exit_reason::kill);
    CHECK_FALSE(liar.is_heard());
    CHECK(lines.has("a message that no process of a job sends"));
    CHECK(honest.is_heard());
  }
  caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
}
