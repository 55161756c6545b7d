#include "actors/step/step_protocol.hpp"

#include "tests/catch.hpp"

using namespace troupe;

namespace {

ProcessId process(int slot) { return {slot, static_cast<std::uint64_t>(slot) + 1}; }

Membership group(std::uint64_t generation, int ranks, std::int64_t resume_step, int newcomer = -1) {
  Membership made{generation, {}, resume_step, 0, "votes", {}};
  for (int r = 0; r < ranks; ++r) made.members.push_back({process(r), "host", r == newcomer});
  return made;
}

// Rank 0 of two, which has done so many steps, and has voted on the next one, or not.
StepProtocol rank_at(std::int64_t steps, bool voted) {
  StepProtocol rank(process(0));
  rank.join(group(1, 2, 0));
  rank.became_distributed();
  for (std::int64_t s = 0; s < steps; ++s) {
    rank.vote();
    rank.votes_came("votes of step " + std::to_string(s));
    rank.end_step();
  }
  if (voted) rank.vote();
  return rank;
}

void refuses(const StepProtocol& rank, std::int64_t resume_step, bool in_step) {
  CHECK_THROWS_WITH(rank.leave_for(group(2, 2, resume_step), in_step),
                    Catch::Contains("the others go on at step " + std::to_string(resume_step)));
}

}  // namespace

TEST_CASE("[L05] a rank commits the step that it voted on if anybody did, and runs it again if nobody did") {
  CHECK((rank_at(7, true).leave_for(group(2, 2, 8), true) == Rejoin::commit));
  CHECK((rank_at(7, true).leave_for(group(2, 2, 7), true) == Rejoin::roll_back));
  CHECK((rank_at(7, false).leave_for(group(2, 2, 7), true) == Rejoin::roll_back));
}

TEST_CASE("[L05] a rank whose state fits nobody's is refused, one that will be healed is not") {
  refuses(rank_at(7, false), 8, true);  // it did not vote
  refuses(rank_at(7, true), 9, true);   // two steps behind
  refuses(rank_at(8, false), 7, true);  // ahead of all others
  refuses(rank_at(7, true), 8, false);  // it has left the step
  auto lost = rank_at(7, true);
  lost.lost_state();
  CHECK((lost.leave_for(group(2, 2, 9), true) == Rejoin::roll_back));
  auto back = rank_at(7, true);
  back.keeps_snapshots(true);
  CHECK((back.leave_for(group(2, 2, 9), true) == Rejoin::roll_back));  // all go back to a snapshot
}

TEST_CASE("[L05] a rank that was interrupted says where it stands") {
  auto rank = rank_at(3, false);
  CHECK(rank.interruption({}).votes_step == 2);
  CHECK(rank.interruption({}).votes == "votes of step 2");
  CHECK(rank.interruption({}).voted_step == 2);
  rank.task_done(1);
  rank.begins_save("save");
  rank.vote();
  const auto told = rank.interruption({ErrorCode::timeout, 0, "reducer", 3, {}, "nobody came", {}}, {1});
  CHECK(told.process == process(0));
  CHECK(told.generation == 1);
  CHECK(told.steps_done == 3);
  CHECK(told.voted_step == 3);
  CHECK(told.votes_step == 2);  // those of step 3 have not come
  CHECK(told.tasks_done == 2);
  CHECK(told.save == "save");
  CHECK((told.distributed && told.whole && told.hung && !told.goes_back));
  CHECK((told.unreachable == std::vector<std::int32_t>{1}));
}

TEST_CASE("[L05] a newcomer has nothing to give, and votes on nothing, before it is healed") {
  StepProtocol rank(process(1));
  rank.join(group(4, 2, 9, 1));
  CHECK(rank.rank() == 1);
  CHECK(rank.steps_done() == 9);
  CHECK_FALSE(rank.interruption({}).whole);
  CHECK_THROWS_WITH(rank.became_distributed(), Catch::Contains("before the heal is not due"));
  CHECK_THROWS_WITH(rank.vote(), Catch::Contains("a vote is not due"));
  rank.healed();
  rank.became_distributed();
  CHECK_THROWS_WITH(rank.vote(), Catch::Contains("a vote is not due"));  // the optimizer's state is not there
  CHECK_FALSE(rank.interruption({}).whole);
  rank.settled_optimizer();
  CHECK(rank.interruption({}).whole);
  CHECK_NOTHROW(rank.vote());
}

TEST_CASE("[L05] a generation forgets the votes of the one before, and knows what was done between two steps") {
  auto rank = rank_at(2, true);
  auto next = group(2, 2, 2);
  next.tasks_done = 1;
  rank.join(next);
  CHECK(rank.interruption({}).voted_step == -1);
  CHECK(rank.interruption({}).votes_step == -1);
  CHECK_FALSE(rank.task_due(0));
  CHECK(rank.task_due(1));
  CHECK_THROWS_WITH(rank.end_step(), Catch::Contains("a step's end is not due"));
  CHECK_THROWS_WITH(rank.join(group(2, 2, 2)), Catch::Contains("joining an earlier generation is not due"));
  CHECK_THROWS_WITH(rank.join(Membership{3, {{process(1), "host", false}}, 2, 0, {}, {}}),
                    Catch::Contains("without this process"));
}
