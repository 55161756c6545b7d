#include "actors/coordinator/recovery_progress.hpp"

#include "tests/catch.hpp"

using namespace troupe;

namespace {

Membership membership(std::vector<int> slots, std::int64_t resume_step) {
  Membership made;
  made.resume_step = resume_step;
  for (const int slot : slots) made.members.push_back({{slot, 1}, "host", false});
  return made;
}

}  // namespace

TEST_CASE("[L05] a job that is interrupted in one step for the fourth time ends") {
  RecoveryProgress progress;
  const auto whole = membership({0, 1}, 7), less = membership({0}, 7);
  CHECK_FALSE(progress.judge(whole, {}));
  for (int i = 0; i < 4; ++i) CHECK_FALSE(progress.judge(less, whole));
  const auto report = progress.judge(less, whole);
  REQUIRE(report);
  CHECK((report->code == ErrorCode::aborted && report->step == 7));
  CHECK(report->cause == "step 7 was interrupted 4 times");
}

TEST_CASE("[L05] a step in between begins the count anew, and growth does not count") {
  RecoveryProgress progress;
  const auto whole = membership({0, 1}, 7), less = membership({0}, 7);
  for (int i = 0; i < 4; ++i) CHECK_FALSE(progress.judge(less, whole));
  for (int i = 0; i < 9; ++i) CHECK_FALSE(progress.judge(whole, less));
  CHECK_FALSE(progress.judge(membership({0}, 8), whole));
  for (int i = 0; i < 3; ++i) CHECK_FALSE(progress.judge(membership({0}, 8), whole));
}
