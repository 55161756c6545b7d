#include "actors/coordinator/coordinator.hpp"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <mutex>

#include "actors/coordinator/coordinator_rendezvous.hpp"
#include "actors/rank/checkpointer.hpp"
#include "tests/catch.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

struct Job {
  explicit Job(int world_size, const std::optional<Membership>& resumed = {}, bool recovers = false)
      : Job(options(world_size, resumed, recovers)) {}
  explicit Job(const CoordinatorOptions& options)
      : world_size_(options.world_size), system(config), coordinator(system.spawn(troupe::coordinator, options)) {}
  static CoordinatorOptions options(int world_size, const std::optional<Membership>& resumed, bool recovers) {
    CoordinatorOptions options;
    options.job_id = "job";
    options.world_size = world_size;
    options.resumed = resumed;
    options.recovery.enabled = recovers || resumed.has_value();
    return options;
  }
  ~Job() {
    for (auto& member : ranks) caf::anon_send_exit(member, caf::exit_reason::user_shutdown);
    caf::anon_send_exit(coordinator, caf::exit_reason::user_shutdown);
  }

  RankSupervisorActor add_rank(int rank, JoinJob join = {}, FindCoordinator reconnect = {}) {
    RankSupervisorOptions options;
    options.reconnect = std::move(reconnect);
    join.job_id = join.job_id.empty() ? "job" : join.job_id;
    join.process = {rank, static_cast<std::uint64_t>(10 + ranks.size())};
    join.world_size = world_size_;
    options.join = join;
    options.coordinator = caf::actor_cast<caf::strong_actor_ptr>(coordinator);
    options.compute = caf::actor(self);
    options.status = std::make_shared<RankStatus>();
    ranks.push_back(system.spawn(rank_supervisor, options));
    return ranks.back();
  }
  std::string refused(const RankSupervisorActor& rank) {
    std::string why = "no answer";
    self->request(rank, 10s, JoinRank{})
        .receive([&](const JoinAccepted& accepted) { why = accepted.refused; }, [](caf::error&) {});
    return why;
  }
  /// In the name of the rank in this slot.
  template <class Message>
  void says(int slot, const Message& message) {
    caf::send_as(ranks[static_cast<std::size_t>(slot)], coordinator, message);
  }
  /// One of the ranks does.
  void hears_interruption() {
    self->receive([](const InterruptRanks&) {}, caf::after(10s) >> [] { FAIL("no rank was interrupted"); });
  }

  const std::int32_t world_size_;
  caf::actor_system_config config;
  caf::actor_system system;
  caf::scoped_actor self{system};
  CoordinatorActor coordinator;
  std::vector<RankSupervisorActor> ranks;
};

}  // namespace

TEST_CASE("the coordinator lets each rank in once, with the same program and config") {
  Job job(2);
  JoinJob first;
  first.build_id = "a";
  first.config_hash = "c";
  CHECK(job.refused(job.add_rank(0, first)).empty());
  auto other = first;
  other.config_hash = "d";
  CHECK_THAT(job.refused(job.add_rank(1, other)), Catch::Contains("config differs from rank 0"));
  other = first;
  other.build_id = "b";
  CHECK_THAT(job.refused(job.add_rank(1, other)), Catch::Contains("program differs"));
  CHECK_THAT(job.refused(job.add_rank(0, first)), Catch::Contains("joined already"));
  CHECK_THAT(job.refused(job.add_rank(7, first)), Catch::Contains("outside the world size"));
  other = first;
  other.job_id = "another";
  CHECK_THAT(job.refused(job.add_rank(1, other)), Catch::Contains("job id"));
  CHECK(job.refused(job.add_rank(1, first)).empty());
}

TEST_CASE("[T06] a rank's failure aborts the others with its report") {
  Job job(2);
  auto first = job.add_rank(0);
  auto second = job.add_rank(1);
  CHECK(job.refused(first).empty());
  CHECK(job.refused(second).empty());
  caf::anon_send(second, RankFailed{{ErrorCode::user, 1, "compute", 12, "forward", "no such layer", {}}});
  int aborts = 0;
  for (int i = 0; i < 4; ++i) {
    job.self->receive([](const Membership&) {},
                      [&](const AbortJob& abort) {
                        ++aborts;
                        CHECK(abort.report.rank == 1);
                        CHECK(abort.report.step == 12);
                        CHECK(abort.report.cause == "no such layer");
                      },
                      caf::after(10s) >> [] {});
  }
  CHECK(aborts == 2);
}

TEST_CASE("[T06] a rank that vanishes aborts the others and is named") {
  Job job(2);
  auto first = job.add_rank(0);
  auto second = job.add_rank(1);
  CHECK(job.refused(first).empty());
  CHECK(job.refused(second).empty());
  caf::anon_send_exit(second, caf::exit_reason::kill);
  std::string cause;
  while (cause.empty())
    job.self->receive([](const Membership&) {}, [&](const AbortJob& abort) { cause = abort.report.cause; },
                      caf::after(10s) >> [&] { cause = "nothing"; });
  CHECK_THAT(cause, Catch::Contains("rank 1 died"));
}

// It used to learn it with the first beat: one that was cut off before that waited ten times as long.
TEST_CASE("[L05] fault 14: a rank knows from its joining how long to look for a lost coordinator") {
  auto options = Job::options(2, {}, true);
  options.recovery.park_after = 50ms;
  Job job(options);
  auto rank = job.add_rank(0, {}, [](auto, const auto&) { return caf::strong_actor_ptr(); });
  CHECK(job.refused(rank).empty());
  caf::anon_send_exit(job.coordinator, caf::exit_reason::kill);
  ErrorReport report;
  job.self->receive([&](const AbortJob& abort) { report = abort.report; }, caf::after(20s) >> [] {});
  CHECK((report.code == ErrorCode::parked));
  CHECK_THAT(report.cause, Catch::Contains("there is no coordinator for 0.0 s"));
}

TEST_CASE("ranks leave values for each other at the coordinator") {
  Job job(2);
  const auto rank = job.add_rank(0);
  CHECK(job.refused(rank).empty());
  CoordinatorRendezvous rendezvous(job.system, std::make_shared<CoordinatorLink>(job.coordinator), rank, 1);
  std::thread writer([&] { rendezvous.put("program/1/address", "there"); });
  CHECK(rendezvous.get("program/1/address", 10s) == "there");
  writer.join();
  CHECK_THROWS_WITH(rendezvous.get("nobody", 1ms), Catch::Contains("nobody"));
  rendezvous.abort({ErrorCode::peer_lost, 1, {}, -1, {}, "rank 1 died", {}});
  CHECK_THROWS_WITH(rendezvous.get("later", 10s), Catch::Contains("rank 1 died"));
}

TEST_CASE(
    "[L04] fault 11: ranks that missed the last announcement get it from the restarted coordinator, others are "
    "fenced") {
  Membership written;
  written.generation = 2;
  written.resume_step = 7;
  written.members = {{{0, 10}, "a", false}, {{1, 11}, "a", true}};
  Job job(2, written);
  CHECK(job.refused(job.add_rank(0)).empty());
  CHECK(job.refused(job.add_rank(1)).empty());
  int memberships = 0;
  for (int i = 0; i < 2; ++i) {
    job.self->receive(
        [&](const Membership& membership) {
          ++memberships;
          CHECK(membership.generation == 2);
          CHECK(membership.resume_step == 7);
          CHECK(membership.members[1].newcomer);
        },
        caf::after(10s) >> [] {});
  }
  CHECK(memberships == 2);
  JoinJob member_of_the_one_before;
  member_of_the_one_before.generation = 1;
  CHECK_THAT(job.refused(job.add_rank(2, member_of_the_one_before)), Catch::Contains("fenced"));
}

TEST_CASE("[L05] what no rank could mean is refused with the field, and the coordinator goes on") {
  std::vector<std::string> lines;
  std::mutex mutex;
  auto options = Job::options(2, {}, true);
  options.log = [&](const std::string& line) {
    std::lock_guard lock(mutex);
    lines.push_back(line);
  };
  Job job(options);
  const auto answer = [&](const JoinJob& join) {
    std::string why = "no answer";
    job.self->request(job.coordinator, 10s, join)
        .receive([&](const JoinAccepted& accepted) { why = accepted.refused; }, [](caf::error&) {});
    return why;
  };
  JoinJob good{"job", {0, 7}, 2, "host", "build", "config", false, 0};
  auto join = good;
  join.process.slot = -1;
  CHECK_THAT(answer(join), Catch::Contains("slot -1 is not one of 0 to 65535"));
  join.process.slot = 1 << 30;
  CHECK_THAT(answer(join), Catch::Contains("slot 1073741824 is not one of"));
  join = good;
  join.world_size = -2;
  CHECK_THAT(answer(join), Catch::Contains("world size -2 is not this job's (2)"));
  join = good;
  join.generation = 9;
  CHECK_THAT(answer(join), Catch::Contains("fenced"));
  for (const auto field : {&JoinJob::job_id, &JoinJob::host, &JoinJob::build_id, &JoinJob::config_hash}) {
    join = good;
    join.*field = std::string(1 << 20, 'x');
    CHECK_THAT(answer(join), Catch::Contains("has 1048576 bytes, more than 256"));
    join.*field = "two\nlines";
    CHECK_THAT(answer(join), Catch::Contains("has control characters"));
  }
  // What has no answer is dropped, also from nobody: the first is told.
  JoinNode node{"job", "host", {{-7, 1}}};
  caf::anon_send(job.coordinator, node);
  node.started.assign(70'000, {1, 1});
  caf::anon_send(job.coordinator, node);
  caf::anon_send(job.coordinator, PutValue{std::string(5000, 'k'), "v"});
  caf::anon_send(job.coordinator, PutValue{"k", std::string(2 << 20, 'v')});
  caf::anon_send(job.coordinator, RankExited{{-1, 1}, 9});
  caf::anon_send(job.coordinator, RankExited{{1 << 30, 1}, 9});
  caf::anon_send(job.coordinator, RankInterrupted{});
  caf::anon_send(
      job.coordinator,
      CheckpointPublished{{0, 7}, {{1, "a"}, {1, "/x", 1, std::numeric_limits<double>::infinity(), {}}, {}}});
  caf::anon_send(job.coordinator, good);
  CollectiveState state;
  state.rank = -3;
  caf::anon_send(job.coordinator, state);
  CHECK(job.refused(job.add_rank(0)).empty());
  CHECK(job.refused(job.add_rank(1)).empty());
  std::lock_guard lock(mutex);
  const auto told = [](const std::string& line) {
    return line.find("dropped an invalid message: slot -7 is not one of") != line.npos;
  };
  CHECK(std::count_if(lines.begin(), lines.end(), told) == 1);
  CHECK(std::count_if(lines.begin(), lines.end(),
                      [](const auto& line) { return line.find("invalid message") != line.npos; }) == 1);
}

TEST_CASE("[L05] fault 18: what was said in a generation that is over is dropped, counted, and changes nothing") {
  std::vector<std::string> lines;
  std::mutex mutex;
  auto options = Job::options(2, {}, true);
  options.log = [&](const std::string& line) {
    std::lock_guard lock(mutex);
    lines.push_back(line);
  };
  const auto said = [&](const std::string& text) {
    std::lock_guard lock(mutex);
    return std::count_if(lines.begin(), lines.end(),
                         [&](const auto& line) { return line.find(text) != std::string::npos; });
  };
  Job job(options);
  for (int rank = 0; rank < 2; ++rank) CHECK(job.refused(job.add_rank(rank)).empty());
  const auto membership = [&] {
    Membership next;
    while (next.members.empty())
      job.self->receive([&](Membership& found) { next = std::move(found); }, [](const InterruptRanks&) {},
                        [](const AbortJob& abort) { FAIL(abort.report.to_string()); },
                        caf::after(20s) >> [] { FAIL("no membership"); });
    return next;
  };
  const auto report_of = [](const Member& member, std::uint64_t generation) {
    RankInterrupted report;
    report.process = member.process;
    report.generation = generation;
    report.why = "a connection ended";
    return report;
  };
  const auto state_of = [](int rank, std::uint64_t generation, std::uint64_t fingerprint) {
    CollectiveState state;
    state.generation = generation;
    state.rank = rank;
    state.communicator = "buckets";
    state.in_flight = true;
    state.sequence = 5;
    state.fingerprint = fingerprint;
    state.what = "all_reduce";
    return state;
  };
  const auto first = membership();
  CHECK(first.generation == 1);
  membership();  // the other rank's
  for (const auto& member : first.members) job.says(member.process.slot, report_of(member, 1));
  CHECK(membership().generation == 2);
  membership();

  // All of it once more, as a network delivers it that has kept it for long; also from a generation that never was.
  for (const std::uint64_t generation : {std::uint64_t{1}, std::uint64_t{0}, ~std::uint64_t{0}}) {
    for (const auto& member : first.members) job.says(member.process.slot, report_of(member, generation));
    job.says(0, state_of(0, generation, 1));
    job.says(1, state_of(1, generation, 2));  // of this generation it would accuse rank 1
  }
  job.says(0, state_of(0, 2, 1));
  auto answered = std::string("no answer");  // after all of the above
  job.self->request(job.coordinator, 10s, GetValue{"nothing"})
      .receive([&](bool, const std::string& text) { answered = text; }, [](caf::error&) {});
  CHECK(answered.empty());
  bool quiet = true;
  job.self->receive([&](const AbortJob&) { quiet = false; }, [&](const InterruptRanks&) { quiet = false; },
                    [&](const Membership&) { quiet = false; }, caf::after(300ms) >> [] {});
  CHECK(quiet);
  CHECK(said("is interrupted") == 1);
  // Late ones are usual after a change of membership. One of a generation that never was is an error.
  CHECK(said("dropped a report") == 1);
  CHECK(said("dropped a report of an interrupted rank of generation 18446744073709551615") == 1);

  // The same in this generation is heard: the next is made, and there the count is told.
  for (const auto& member : first.members) job.says(member.process.slot, report_of(member, 2));
  CHECK(membership().generation == 3);
  membership();
  job.says(1, state_of(1, 2, 2));
  job.says(1, state_of(1, 4, 2));
  job.self->request(job.coordinator, 10s, GetValue{"nothing"})
      .receive([](bool, const std::string&) {}, [](caf::error&) {});
  CHECK(said("dropped a report on collectives of generation 4, the current one is 3 (14 such messages so far)") == 1);
  CHECK(said("dropped a report") == 2);
}

namespace {

/// Two ranks with a checkpointer each; the test is Compute on both.
struct SavingJob : Job {
  explicit SavingJob(bool recovers = false) : Job(2, {}, recovers) {
    for (int rank = 0; rank < 2; ++rank) {
      CHECK(refused(add_rank(rank)).empty());
      CheckpointerOptions options;
      options.directory = scratch.path();
      options.rank = rank;
      options.publishes = rank == 0;
      options.first = {10, "a"};  // it may clear away what others left, but not this
      options.supervisor = caf::actor_cast<caf::actor>(ranks.back());
      checkpointers.push_back(spawn_checkpointer(system, options));
    }
    for (int i = 0; i < 2; ++i)
      self->receive([&](Membership& next) { membership = std::move(next); },
                    caf::after(10s) >> [] { FAIL("no membership"); });
  }
  ~SavingJob() {
    for (auto& checkpointer : checkpointers) {
      caf::anon_send_exit(checkpointer, caf::exit_reason::user_shutdown);
      self->wait_for(checkpointer);
    }
  }
  void save(int rank, std::int64_t step, std::uint64_t generation = 1) {
    auto part = std::make_shared<CheckpointPart>();
    part->step = step;
    part->rank = rank;
    part->ranks = 2;
    part->rank_state = "{}";
    self->send(checkpointers[static_cast<std::size_t>(rank)], SaveCheckpoint{part, {step, "a"}, generation, false, 0});
  }
  /// `rank` leaves the first generation, after it has begun its part of the save `begun`.
  void interrupt(int rank, const std::string& begun) {
    RankInterrupted report;
    report.process = membership.members[static_cast<std::size_t>(rank)].process;
    report.generation = membership.generation;
    report.save = begun;
    caf::anon_send(ranks[static_cast<std::size_t>(rank)], report);
    for (int i = 0; i < 2; ++i) hears_interruption();
  }
  /// The next answer: a path, or why not.
  std::string answer() {
    std::string text = "nothing came";
    self->receive([&](const CheckpointSaved& saved) { text = saved.path; },
                  [&](const CheckpointFailed& failed) { text = failed.report.to_string(); }, caf::after(10s) >> [] {});
    return text;
  }

  testing::ScratchDirectory scratch;
  std::vector<Checkpointer> checkpointers;
  Membership membership;
};

}  // namespace

TEST_CASE("[C02] the coordinator has a checkpoint made when all ranks have written, and tells all") {
  SavingJob job;
  for (const int step : {10, 20}) {
    job.save(1, step);
    job.save(0, step);
    for (int rank = 0; rank < 2; ++rank) CHECK(job.answer() == job.scratch / ("step-000000" + std::to_string(step)));
  }
  // A rank that asks late, as after the coordinator's restart, hears the same.
  caf::anon_send(job.ranks[1], PartSaved{{}, 1, {20, "a"}, 1, 2, false, {ErrorCode::ok, 1, {}, 20, {}, {}, {}}});
  job.save(1, 30);
  job.save(0, 30);
  for (int rank = 0; rank < 2; ++rank) CHECK(job.answer() == job.scratch / "step-00000030");
}

TEST_CASE(
    "[C02] a rank lost before it has written fails the save for the others, and a part of another generation does") {
  SECTION("lost") {
    SavingJob job(true);
    job.save(0, 10);
    caf::anon_send_exit(job.ranks[1], caf::exit_reason::kill);
    CHECK_THAT(job.answer(), Catch::Contains("rank 1 was lost before its part was on disk"));
    CHECK(std::filesystem::is_empty(job.scratch.path()));
  }
  SECTION("lost before anybody has written") {
    SavingJob job(true);
    caf::anon_send_exit(job.ranks[1], caf::exit_reason::kill);
    job.hears_interruption();
    job.save(0, 10);
    CHECK_THAT(job.answer(), Catch::Contains("rank 1 was lost before its part was on disk"));
  }
  SECTION("interrupted after the others have written, and before it has begun") {
    SavingJob job(true);
    job.save(0, 10);
    job.interrupt(1, "the one before");
    CHECK_THAT(job.answer(), Catch::Contains("it was interrupted before it had begun to write"));
  }
  SECTION("interrupted before anybody has written") {
    SavingJob job(true);
    job.interrupt(1, "");
    job.save(0, 10);
    CHECK_THAT(job.answer(), Catch::Contains("it was interrupted before it had begun to write"));
  }
  SECTION("interrupted while it writes") {
    SavingJob job(true);
    job.save(0, 10);
    job.interrupt(1, "a");
    job.save(1, 10);
    for (int rank = 0; rank < 2; ++rank) CHECK(job.answer() == job.scratch / "step-00000010");
  }
  SECTION("another generation") {
    SavingJob job;
    job.save(0, 10, 7);
    CHECK_THAT(job.answer(), Catch::Contains("a rank was lost before all had written"));
  }
}

TEST_CASE("[L05] a replacement that comes when the job is done ends, too") {
  Job job(2, {}, true);
  for (int rank = 0; rank < 2; ++rank) CHECK(job.refused(job.add_rank(rank)).empty());
  for (int i = 0; i < 2; ++i)
    job.self->receive([](const Membership&) {}, caf::after(10s) >> [] { FAIL("no membership"); });
  for (const auto& rank : job.ranks)
    job.self->request(rank, 10s, FinishRank{{ErrorCode::ok, -1, {}, -1, {}, {}, {}}})
        .receive([](bool) {}, [](caf::error&) {});
  CHECK(job.refused(job.add_rank(2)).empty());
  ErrorReport report;
  job.self->receive([&](const AbortJob& abort) { report = abort.report; }, caf::after(10s) >> [] {});
  CHECK((report.code == ErrorCode::ok));
  CHECK(report.cause == "the job is done");
}

TEST_CASE("[L05] a job grows rank by rank within one step, and that is no interruption without progress") {
  auto options = Job::options(2, {}, true);
  constexpr int kSlots = 8;
  options.world_size = kSlots;
  options.recovery.min_start = 1;
  options.recovery.last_call = 0ms;
  Job job(options);
  const auto membership = [&] {
    Membership next;
    job.self->receive([&](Membership& m) { next = std::move(m); },
                      [](const AbortJob& abort) { FAIL(abort.report.to_string()); },
                      caf::after(10s) >> [] { FAIL("no membership"); });
    return next;
  };
  CHECK(job.refused(job.add_rank(0)).empty());
  auto current = membership();
  for (int slot = 1; slot < kSlots; ++slot) {
    CHECK(job.refused(job.add_rank(slot)).empty());
    for (int rank = 0; rank < current.world_size(); ++rank) job.hears_interruption();
    for (int rank = 0; rank < current.world_size(); ++rank) {
      RankInterrupted report;
      report.process = current.members[static_cast<std::size_t>(rank)].process;
      report.generation = current.generation;
      report.steps_done = 5;
      caf::anon_send(job.ranks[static_cast<std::size_t>(rank)], report);
    }
    for (int rank = 0; rank <= slot; ++rank) current = membership();
    CHECK(current.world_size() == slot + 1);
    CHECK(current.resume_step == 5);
  }
}

namespace {

/// Says once who has asked it for a communicator's state.
struct Stalled : Job {
  Stalled() : Job(2, {}, true) {
    for (int rank = 0; rank < 2; ++rank) CHECK(refused(add_rank(rank)).empty());
    for (int i = 0; i < 2; ++i)
      self->receive([](const Membership&) {}, caf::after(10s) >> [] { FAIL("no membership"); });
  }
  void wait_in(int rank, std::uint64_t generation, std::uint64_t fingerprint, const std::string& what) {
    CollectiveState state;
    state.rank = rank;
    state.generation = generation;
    state.communicator = "program";
    state.in_flight = true;
    state.sequence = 5;
    state.fingerprint = fingerprint;
    state.what = what;
    says(rank, state);
  }
  std::string accused() {
    std::string cause = "nobody";
    self->receive([&](const AbortJob& abort) { cause = abort.report.cause; }, caf::after(500ms) >> [] {});
    return cause;
  }
};

}  // namespace

TEST_CASE("[L06] fault 18: what a rank of a former generation waits in accuses nobody") {
  Stalled job;
  job.wait_in(0, 1, 9, "vote");
  job.wait_in(1, 0, 2, "barrier");
  CHECK(job.accused() == "nobody");
  job.wait_in(1, 1, 2, "barrier");
  CHECK_THAT(job.accused(), Catch::Contains("is in barrier"));
}

TEST_CASE("[K01] the coordinator keeps as many values and bytes of a rank as a job needs") {
  RendezvousStore values(2);
  for (int i = 0; i < 640; ++i) REQUIRE(values.put(0, {"k" + std::to_string(i), "v"}).empty());
  CHECK_THAT(values.put(0, {"one more", "v"}), Catch::Contains("slot 0: it has more values than its job needs"));
  CHECK(values.put(0, {"k7", "again"}).empty());
  CHECK(*values.find("k7") == "again");
  CHECK(values.put(1, {"other", std::string(640 << 10, 'v').substr(5)}).empty());
  CHECK_THAT(values.put(1, {"x", "y"}), Catch::Contains("more values"));
  CHECK_THAT(values.put(1, {"k7", "z"}), Catch::Contains("slot 0's key, from slot 1"));
  CHECK(values.find("x") == nullptr);
  values.clear();
  CHECK(values.put(1, {"k7", "z"}).empty());
}

namespace {

/// A rank that goes by a membership, and says what the test has it say.
struct Returning {
  Returning(caf::actor_system& system, CoordinatorActor address) : self(system), coordinator(std::move(address)) {}
  std::string join(const ProcessId& process, std::uint64_t generation) {
    std::string why = "no answer";
    self->request(coordinator, 10s, JoinJob{"job", process, 2, "host", "", "", false, generation})
        .receive([&](const JoinAccepted& accepted) { why = accepted.refused; }, [](caf::error&) {});
    return why;
  }
  template <class Message>
  Message next() {
    std::optional<Message> found;
    while (!found)
      self->receive([&](const Message& message) { found = message; }, [](const CoordinatorBeat&) {},
                    caf::after(20s) >> [] { FAIL("it does not come"); });
    return *found;
  }

  caf::scoped_actor self;
  CoordinatorActor coordinator;
};

}  // namespace

TEST_CASE("[L04] a rank of a generation that a newer one went on without is fenced once the newer one is known") {
  Membership older;
  older.generation = 3;
  older.resume_step = 7;
  older.members = {{{0, 10}, "host", false}, {{1, 11}, "host", false}};
  auto newer = older;
  newer.generation = 4;
  newer.resume_step = 13;
  newer.members.pop_back();
  auto options = Job::options(2, std::nullopt, true);
  options.life = 1;
  options.without_journal = true;
  Job job(options);
  Returning first(job.system, job.coordinator), second(job.system, job.coordinator);
  CHECK(second.join({1, 11}, 3).empty());
  second.next<ReportMembership>();
  second.self->send(job.coordinator, older);
  RankInterrupted parted;
  parted.process = {1, 11};
  parted.generation = 3;
  parted.steps_done = 7;
  parted.parted = true;
  second.self->send(job.coordinator, parted);
  CHECK(first.join({0, 10}, 4).empty());
  first.next<ReportMembership>();
  first.self->send(job.coordinator, newer);
  CHECK(second.next<FenceRank>().reason == "generation 4 goes on without it");
}

TEST_CASE("[L04] a coordinator that takes over without a journal, or with an old one, learns from a rank who trains") {
  const bool old_journal = GENERATE(false, true);
  Membership known;
  known.generation = 3;
  known.resume_step = 7;
  known.members = {{{0, 10}, "host", false}, {{1, 11}, "host", false}};
  auto before = known;
  before.generation = 2;
  before.members[1].process.incarnation = 9;
  auto options = Job::options(2, old_journal ? std::optional(before) : std::nullopt, true);
  options.life = 2;
  options.without_journal = !old_journal;
  options.recovery.replace_timeout = 10ms;
  options.recovery.min_ranks = 1;
  options.record = [](const Membership&) { throw Error(ErrorCode::io, "journal", "No space left on device"); };
  std::vector<std::string> lines;
  std::mutex mutex;
  options.log = [&](const std::string& line) {
    std::lock_guard lock(mutex);
    lines.push_back(line);
  };
  const auto said = [&](const std::string& text) {
    std::lock_guard lock(mutex);
    return std::any_of(lines.begin(), lines.end(), [&](const auto& line) { return line.find(text) != line.npos; });
  };
  Job job(options);
  Returning first(job.system, job.coordinator), liar(job.system, job.coordinator);
  {
    Returning second(job.system, job.coordinator);
    CHECK(first.join({0, 10}, 3).empty());
    first.next<ReportMembership>();
    liar.self->send(job.coordinator, known);  // it is no member
    first.self->send(job.coordinator, known);
    CHECK(second.join({1, 11}, 3).empty());
    CHECK(first.join({0, 10}, 3).empty());  // its message before has been read
    CHECK(said("the coordinator takes over at generation 3, as reported by a rank"));
    CHECK(said("dropped a Membership of a process that is not in it"));
  }  // the second rank dies, and the job shrinks
  CHECK(first.next<InterruptRanks>().generation == 3);
  RankInterrupted report;
  report.process = {0, 10};
  report.generation = 3;
  report.steps_done = 7;
  first.self->send(job.coordinator, report);
  const auto next = first.next<Membership>();
  // Not 4, nor 5: the coordinators before may have announced those to a process that is not here.
  CHECK(next.generation == 6);
  CHECK(next.world_size() == 1);
  CHECK(
      said("warning: generation 6 could not be written to the journal; the job goes on without it (journal: No space "
           "left on device"));
}
