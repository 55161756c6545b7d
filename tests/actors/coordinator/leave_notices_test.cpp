#include "actors/coordinator/leave_notices.hpp"

#include "tests/catch.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

struct Leavers {
  Leavers() {
    Membership current;
    current.generation = 1;
    for (int slot = 0; slot < 3; ++slot) {
      current.members.push_back({process(slot), "a", false});
      JoinJob join;
      join.process = process(slot);
      processes.add({.supervisor = {}, .joined = join, .member = true});
    }
    processes.make_current(current);
  }
  static ProcessId process(int slot, std::uint64_t life = 1) { return {slot, life}; }

  ProcessTable processes;
  LeaveNotices notices;
  SaveRounds saves;
  LeaveNotices::Time now{};
};

// The membership without this slot, after all have parted.
void part(Leavers& job, int slot, const std::string& save = {}) {
  MembershipQuestion question;
  for (const auto& member : job.processes.current().members) {
    RankInterrupted report;
    report.process = member.process;
    report.parted = true;
    report.save = save;
    question.survivors.push_back({member, report, {}});
  }
  job.notices.mark(question);
  for (const auto& survivor : question.survivors)
    CHECK(survivor.leaves == (survivor.member.process.slot == slot ? "SIGTERM" : ""));
  auto next = job.processes.current();
  ++next.generation;
  std::erase_if(next.members, [slot](const Member& member) { return member.process.slot == slot; });
  job.processes.make_current(next, true);
}

}  // namespace

TEST_CASE("[L04] a member that leaves is asked until it has stopped, and let go once it is none") {
  Leavers job;
  CHECK(job.notices.add({Leavers::process(1), "SIGTERM"}));
  CHECK_FALSE(job.notices.add({Leavers::process(1), "SIGTERM"}));
  for (int times = 0; times < 2; ++times) {
    const auto asked = job.notices.ask(job.processes);
    REQUIRE(asked.size() == 1);
    CHECK(std::get<LeaveJob>(asked[0].second).generation == 1);
    CHECK(job.notices.due(job.processes, job.saves, job.now, 30s).empty());
  }
  part(job, 1);
  CHECK(job.notices.ask(job.processes).empty());
  const auto gone = job.notices.due(job.processes, job.saves, job.now, 30s);
  REQUIRE(gone.size() == 1);
  CHECK(gone[0] == Leavers::process(1));
  CHECK(job.notices.reason(gone[0]).code == ErrorCode::ok);
  CHECK(job.notices.has_slot(1));  // nothing is started there
  CHECK_FALSE(job.notices.ended(Leavers::process(1)));
  job.notices.joined(Leavers::process(1, 2));
  CHECK_FALSE(job.notices.has_slot(1));
}

TEST_CASE("[L04] who leaves stays for its part of a save that is under way, but not for ever") {
  Leavers job;
  job.notices.add({Leavers::process(2), "SIGTERM"});
  part(job, 2, "a save");
  CHECK(job.notices.due(job.processes, job.saves, job.now, 30s).empty());
  SECTION("it ends") {
    (void)job.saves.published({{10, "a save"}, {}, {}}, job.processes);
    CHECK(job.notices.due(job.processes, job.saves, job.now, 30s).size() == 1);
  }
  SECTION("it does not") { CHECK(job.notices.due(job.processes, job.saves, job.now + 31s, 30s).size() == 1); }
}

TEST_CASE("[L04] a save that was begun before a member left is made of all parts") {
  Leavers job;
  job.notices.add({Leavers::process(2), "SIGTERM"});
  part(job, 2, "a save");
  RankMessages answers;
  for (int rank = 0; rank < 3; ++rank) {
    const PartSaved saved{
        Leavers::process(rank), 1, {10, "a save"}, rank, 3, false, {ErrorCode::ok, rank, {}, 10, {}, {}, {}}};
    answers = job.saves.part_saved(saved, job.processes, false, job.now);
    CHECK(answers.size() == (rank == 2 ? 1 : 0));
  }
  REQUIRE(answers.size() == 1);
  CHECK(std::get<PublishCheckpoint>(answers[0].second).ranks == 3);
}

TEST_CASE("[L04] a candidate on a host that leaves takes no place, and one that --chaos drew is replaced") {
  Leavers job;
  job.notices.add({Leavers::process(7), "SIGTERM"});
  MembershipQuestion question;
  question.candidates = {{Leavers::process(7), "a"}, {Leavers::process(8), "a"}};
  job.notices.mark(question);
  REQUIRE(question.candidates.size() == 1);
  CHECK(question.candidates[0].process.slot == 8);
  job.notices.add({Leavers::process(0), "--chaos"}, true);
  CHECK(job.notices.ended(Leavers::process(0)));
  CHECK_FALSE(job.notices.has_slot(0));
}
