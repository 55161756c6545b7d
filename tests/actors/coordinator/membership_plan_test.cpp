#include "actors/coordinator/membership_plan.hpp"

#include "tests/catch.hpp"

using namespace troupe;
using namespace std::chrono_literals;
using Action = MembershipAnswer::Action;

namespace {

Member member(int slot, const std::string& host = "a") { return {{slot, std::uint64_t(100 + slot)}, host, false}; }

// A job of four ranks of which those in `left` survived step 7, all at the same point.
MembershipQuestion question(const std::vector<int>& left, int world_size = 4) {
  MembershipQuestion q;
  q.world_size = world_size;
  q.current.generation = 3;
  for (int r = 0; r < world_size; ++r) q.current.members.push_back(member(r));
  for (const int r : left) {
    RankInterrupted report;
    report.process = member(r).process;
    report.generation = 3;
    report.steps_done = 7;
    report.voted_step = 6;
    report.votes_step = 6;
    report.votes = "six";
    q.survivors.push_back({member(r), report});
  }
  return q;
}

Candidate candidate(int slot, bool spare = false, const std::string& host = "a") {
  return {{slot, std::uint64_t(200 + slot)}, host, spare};
}

std::vector<int> slots(const Membership& membership) {
  std::vector<int> slots;
  for (const auto& m : membership.members) slots.push_back(m.process.slot);
  return slots;
}

}  // namespace

TEST_CASE("[L04] a job begins when all ranks have joined, in the order of their slots") {
  MembershipQuestion q;
  q.world_size = 3;
  q.candidates = {candidate(2), candidate(0), candidate(3, true)};
  CHECK(plan_membership(q).action == Action::wait);
  q.candidates.push_back(candidate(1));
  const auto answer = plan_membership(q);
  REQUIRE(answer.action == Action::go);
  CHECK((slots(answer.next) == std::vector<int>{0, 1, 2}));
  CHECK(answer.next.generation == 1);
  CHECK_FALSE(answer.next.has_newcomers());
}

TEST_CASE("[L05] late hosts are not waited for longer than the deadline, if enough are there") {
  MembershipQuestion q;
  q.world_size = 4;
  q.min_start = 2;
  q.candidates = {candidate(0), candidate(1)};
  q.waited = 6s;
  CHECK(plan_membership(q).action == Action::go);
  q.replacements_coming = 1;
  CHECK(plan_membership(q).action == Action::wait);
  q.replacements_coming = 0;
  q.min_start = 3;
  CHECK(plan_membership(q).action == Action::wait);
}

TEST_CASE("[L02] hosts that are unavailable at the start are not waited for, if the job may begin without them") {
  MembershipQuestion q;
  q.world_size = 4;
  q.absent = 2;
  q.min_start = 2;
  q.candidates = {candidate(0)};
  CHECK(plan_membership(q).action == Action::wait);
  q.candidates.push_back(candidate(3));
  CHECK(plan_membership(q).action == Action::go);
  q.min_start = 4;
  CHECK(plan_membership(q).action == Action::park);
}

TEST_CASE("[L05] nobody is replaced before every survivor has left its step") {
  auto q = question({0, 1, 3});
  q.candidates = {candidate(2)};
  q.survivors[1].report.reset();
  const auto answer = plan_membership(q);
  CHECK(answer.action == Action::wait);
  CHECK_THAT(answer.reason, Catch::Contains("slot 1"));
}

TEST_CASE(
    "[L05] a replacement takes the vacant rank, the slot's own before a spare, a spare of the host before another's") {
  auto q = question({0, 1, 3});
  q.candidates = {candidate(5, true, "b"), candidate(4, true, "a")};
  auto answer = plan_membership(q);
  REQUIRE(answer.action == Action::go);
  CHECK((slots(answer.next) == std::vector<int>{0, 1, 4, 3}));
  CHECK(answer.next.members[2].newcomer);
  CHECK(answer.next.generation == 4);
  CHECK(answer.next.resume_step == 7);
  q.candidates.push_back(candidate(2));
  answer = plan_membership(q);
  CHECK((slots(answer.next) == std::vector<int>{0, 1, 2, 3}));
}

TEST_CASE("[L05] without a replacement in time the ranks close up, and grow again when one comes") {
  auto q = question({0, 1, 3});
  q.replacements_coming = 1;
  CHECK(plan_membership(q).action == Action::wait);
  q.waited = 5s;
  auto answer = plan_membership(q);
  REQUIRE(answer.action == Action::go);
  CHECK((slots(answer.next) == std::vector<int>{0, 1, 3}));
  CHECK_THAT(answer.reason, Catch::Contains("shrinks from 4 to 3 ranks"));

  auto later = question({0, 1, 2}, 3);
  later.world_size = 4;
  later.candidates = {candidate(9)};
  answer = plan_membership(later);
  REQUIRE(answer.action == Action::go);
  CHECK((slots(answer.next) == std::vector<int>{0, 1, 2, 9}));
  CHECK_THAT(answer.reason, Catch::Contains("grows from 3 to 4 ranks"));
}

TEST_CASE("[L05] the ranks of a node that joins are taken in together, if they come in time") {
  auto q = question({0, 1}, 2);
  q.world_size = 4;  // room for two more
  q.candidates = {candidate(2, false, "b")};
  q.replacements_coming = 1;
  q.waited = 100ms;
  CHECK(plan_membership(q).action == Action::wait);
  q.waited = q.replace_timeout;
  CHECK((slots(plan_membership(q).next) == std::vector<int>{0, 1, 2}));
  q.waited = 100ms;
  q.candidates.push_back(candidate(3, false, "b"));
  q.replacements_coming = 0;
  const auto answer = plan_membership(q);
  REQUIRE(answer.action == Action::go);
  CHECK((slots(answer.next) == std::vector<int>{0, 1, 2, 3}));
  CHECK_THAT(answer.reason, Catch::Contains("grows from 2 to 4 ranks"));
}

TEST_CASE("[L05] fewer ranks than the job needs park it") {
  auto q = question({0, 1});
  q.min_ranks = 3;
  const auto answer = plan_membership(q);
  CHECK(answer.action == Action::park);
  CHECK_THAT(answer.reason, Catch::Contains("the job needs 3"));
  CHECK(plan_membership(question({})).action == Action::start_over);
}

TEST_CASE("[L04] half of a cut network never goes on; the larger part does") {
  auto q = question({0, 1});
  q.unreachable = 2;
  CHECK(plan_membership(q).action == Action::park);
  q = question({0, 1, 2});
  q.unreachable = 1;
  CHECK(plan_membership(q).action == Action::go);
  // A proved death does not count: two of four died, one of the two left may go on alone with the other gone for
  // certain.
  q = question({0});
  q.unreachable = 0;
  CHECK(plan_membership(q).action == Action::go);
}

TEST_CASE("[L05] what one survivor has committed all commit that voted on it") {
  auto q = question({0, 1, 3});
  q.survivors[0].report->steps_done = 8;  // it saw all votes of step 7
  q.survivors[0].report->votes_step = 7;
  q.survivors[0].report->votes = "seven";
  q.survivors[0].report->tasks_done = 2;
  for (const std::size_t i : {1u, 2u}) q.survivors[i].report->voted_step = 7;
  auto answer = plan_membership(q);
  REQUIRE(answer.action == Action::go);
  CHECK(answer.next.resume_step == 8);
  CHECK(answer.next.votes == "seven");
  CHECK(answer.next.tasks_done == 0);

  q.survivors[2].report->voted_step = 6;  // it did not vote, so nobody can have committed: its state fits nobody's
  answer = plan_membership(q);
  CHECK(answer.action == Action::expel);
  CHECK(answer.expelled.slot == 3);
}

TEST_CASE("[L05] [C04] who has gone back to a snapshot already, while another had not, stays") {
  auto q = question({0, 1, 3});
  q.survivors[0].report->steps_done = 4;  // the next generation was interrupted as it had healed
  q.survivors[0].report->voted_step = -1;
  for (auto& survivor : q.survivors) survivor.report->goes_back = true;
  q.candidates = {candidate(2)};
  auto answer = plan_membership(q);
  REQUIRE(answer.action == Action::go);
  CHECK((slots(answer.next) == std::vector<int>{0, 1, 2, 3}));
  CHECK(answer.next.resume_step == 7);
  CHECK(answer.next.tasks_done == 0);

  q.survivors[0].report->goes_back = false;  // a replica has nothing to go back to
  answer = plan_membership(q);
  REQUIRE(answer.action == Action::expel);
  CHECK(answer.expelled.slot == 0);
}

TEST_CASE("[L05] nobody having committed, the step is run again by all") {
  auto q = question({0, 1, 3});
  for (auto& survivor : q.survivors) survivor.report->voted_step = 7;
  const auto answer = plan_membership(q);
  REQUIRE(answer.action == Action::go);
  CHECK(answer.next.resume_step == 7);
  CHECK(answer.next.votes == "six");
}

TEST_CASE("[L05] what lies between two steps is done again if one of the survivors had not finished it") {
  auto q = question({0, 1, 3});
  q.survivors[0].report->tasks_done = 2;
  q.survivors[1].report->tasks_done = 1;
  q.survivors[2].report->tasks_done = 2;
  CHECK(plan_membership(q).next.tasks_done == 1);
}

TEST_CASE("[L05] a rank whose heal was interrupted is healed again, and is nobody's donor") {
  auto q = question({0, 1, 2, 3});
  q.survivors[2].report->whole = false;
  auto answer = plan_membership(q);
  REQUIRE(answer.action == Action::go);
  CHECK(answer.next.members[2].newcomer);
  CHECK_FALSE(answer.next.members[0].newcomer);
  for (const std::int64_t stands_at : {0, 6, 9}) {  // wherever its heal was interrupted
    q.survivors[2].report->steps_done = stands_at;
    q.survivors[2].report->voted_step = q.survivors[2].report->votes_step = -1;
    answer = plan_membership(q);
    REQUIRE(answer.action == Action::go);
    CHECK(answer.next.resume_step == 7);
    CHECK(answer.next.votes == "six");
  }
  for (auto& survivor : q.survivors) survivor.report->whole = false;
  CHECK(plan_membership(q).action == Action::start_over);
  for (auto& survivor : q.survivors) survivor.report->steps_done = 0;
  for (auto& survivor : q.survivors) survivor.report->distributed = false;
  q.survivors[1].report->distributed = true;  // it would wait for its optimizer's state, the others for a model
  CHECK(plan_membership(q).action == Action::start_over);
  q.survivors[1].report->distributed = false;  // none has begun: all start alike
  answer = plan_membership(q);
  REQUIRE(answer.action == Action::go);
  CHECK_FALSE(answer.next.has_newcomers());
}

TEST_CASE(
    "[L05] fault 15: of two ranks that do not reach each other the higher one goes, of several the one with the most "
    "links cut") {
  auto q = question({0, 1, 2, 3});
  q.survivors[1].report->unreachable = {2};  // one way: rank 2 says nothing
  auto answer = plan_membership(q);
  CHECK(answer.action == Action::expel);
  CHECK(answer.link_fault);
  CHECK((answer.expelled == member(2).process));
  CHECK_THAT(answer.reason, Catch::Contains("it and rank 1 can't reach each other"));

  q.survivors[3].report->unreachable = {1};
  answer = plan_membership(q);
  CHECK((answer.expelled == member(1).process));
  CHECK_THAT(answer.reason, Catch::Contains("it and ranks 2, 3 can't reach each other"));

  // With it gone there is nothing left to complain of.
  q.survivors.erase(q.survivors.begin() + 1);
  CHECK(plan_membership(q).action == Action::go);
}

TEST_CASE(
    "[L05] fault 15: of two ranks that do not reach each other the one stays that has the state, and nonsense is no "
    "complaint") {
  auto q = question({0, 1, 2, 3});
  q.survivors[2].report->unreachable = {3, 3, 2, -1, 4, 1 << 30};
  q.survivors[2].report->whole = false;
  CHECK((plan_membership(q).expelled == member(2).process));
  q.survivors[2].report->unreachable = {2, -1, 4, 1 << 30};
  CHECK(plan_membership(q).action == Action::go);
}

TEST_CASE(
    "[L04] a process finds its rank wherever it lies among the members, and none where another life of its slot does") {
  Membership membership;
  const std::vector<int> slots = {7, 0, 3, 12, 1, 2};
  for (const int slot : slots)
    membership.members.push_back({{slot, 40U + static_cast<std::uint64_t>(slot)}, "host", false});
  for (int rank = 0; rank < membership.world_size(); ++rank) {
    const int slot = slots[static_cast<std::size_t>(rank)];
    CHECK(membership.rank_of({slot, 40U + static_cast<std::uint64_t>(slot)}) == rank);
    CHECK(membership.rank_of({slot, 39}) == -1);
  }
  CHECK(membership.rank_of({5, 45}) == -1);
  CHECK(membership.rank_of({-1, 0}) == -1);
  CHECK(Membership().rank_of({0, 40}) == -1);
}

TEST_CASE("[L04] members leave once all have stopped for it between two steps, and no step is run again") {
  auto q = question({0, 1, 2, 3});
  q.survivors[1].leaves = "SIGTERM";
  for (auto& survivor : q.survivors) survivor.report->parted = true;
  q.survivors[1].report->leaves = true;
  SECTION("another has its notice since the vote: no other has what it holds, and it stays for a step") {
    q.survivors[2].leaves = "SIGTERM";
    const auto answer = plan_membership(q);
    REQUIRE(answer.action == Action::go);
    CHECK((slots(answer.next) == std::vector<int>{0, 2, 3}));
    CHECK(answer.reason == "rank 1 on a leaves (SIGTERM): shrinks from 4 to 3 ranks at step 7");
  }
  SECTION("the job goes on without") {
    const auto answer = plan_membership(q);
    REQUIRE(answer.action == Action::go);
    CHECK((slots(answer.next) == std::vector<int>{0, 2, 3}));
    CHECK(answer.next.resume_step == 7);
    CHECK(answer.reason == "rank 1 on a leaves (SIGTERM): shrinks from 4 to 3 ranks at step 7");
  }
  SECTION("a spare that is ready takes its place") {
    q.candidates = {candidate(4, true)};
    const auto answer = plan_membership(q);
    REQUIRE(answer.action == Action::go);
    CHECK((slots(answer.next) == std::vector<int>{0, 4, 2, 3}));
    CHECK(answer.next.members[1].newcomer);
  }
  SECTION("one has not stopped for it: it was interrupted, and all stay for now") {
    q.survivors[3].report->parted = false;
    const auto answer = plan_membership(q);
    REQUIRE(answer.action == Action::go);
    CHECK((slots(answer.next) == std::vector<int>{0, 1, 2, 3}));
  }
  SECTION("one was lost meanwhile: who leaves stays for now, with what only it holds") {
    q.survivors.pop_back();
    const auto answer = plan_membership(q);
    REQUIRE(answer.action == Action::go);
    CHECK((slots(answer.next) == std::vector<int>{0, 1, 2}));
  }
  SECTION("the job needs it") {
    q.min_ranks = 4;
    const auto answer = plan_membership(q);
    CHECK(answer.action == Action::park);
    CHECK(answer.reason ==
          "rank 1 on a leaves (SIGTERM): 3 ranks left and none to replace the others; the job needs 4");
  }
  SECTION("all leave") {
    for (auto& survivor : q.survivors) survivor.leaves = "SIGTERM", survivor.report->leaves = true;
    CHECK(plan_membership(q).action == Action::park);
    // One that has the state stays for those that take the others' places.
    q.candidates = {candidate(4, true), candidate(5, true)};
    const auto answer = plan_membership(q);
    REQUIRE(answer.action == Action::go);
    CHECK((slots(answer.next) == std::vector<int>{0, 4, 5}));
    q = question({0}, 1);
    q.survivors[0].leaves = "SIGTERM";
    q.survivors[0].report->parted = q.survivors[0].report->leaves = true;
    q.candidates = {candidate(4, true)};
    CHECK(plan_membership(q).action == Action::park);
  }
}
