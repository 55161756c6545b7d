#include "actors/coordinator/restart_policy.hpp"

#include "tests/catch.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

using Ages = std::vector<std::chrono::milliseconds>;

RestartDecision decide_restart(const Ages& slot, Ages others, RestartLimits limits = {3, 4, 600s, 5s}) {
  others.insert(others.end(), slot.begin(), slot.end());
  return may_restart(slot, others, limits);
}

}  // namespace

TEST_CASE("[L05] a slot that dies too often is not started again before its oldest death is out of the window") {
  CHECK(decide_restart({0s, 10s, 20s}, {}).start);
  const auto refused = decide_restart({0s, 100s, 200s, 300s}, {});
  CHECK_FALSE(refused.start);
  CHECK((refused.wait == 300s));
  CHECK(refused.reason == "died 4 times within 600 s");
  CHECK(decide_restart({0s, 100s, 200s, 601s}, {}).start);
  CHECK((decide_restart({0s, 100s, 200s, 300s, 400s}, {}).wait == 300s));  // two of them have to go
  CHECK_FALSE(decide_restart({0s}, {}, {0, 4, 600s, 5s}).start);
  CHECK(decide_restart({}, {}, {0, 4, 600s, 5s}).start);
}

TEST_CASE(
    "[L05] a host that keeps failing is left alone, whichever of its slots it takes down; one failure of all slots "
    "counts once") {
  CHECK(decide_restart({0s}, {0s, 1s, 2s, 0s, 1s, 3s, 4s}).start);  // a power cut
  const auto refused = decide_restart({0s}, {100s, 200s, 300s, 400s});
  CHECK_FALSE(refused.start);
  CHECK(refused.reason == "is on a host that failed 5 times within 600 s");
  CHECK((refused.wait == 200s));
  CHECK(decide_restart({0s}, {100s, 200s, 300s, 700s}).start);
}

TEST_CASE("[R07] the same end of two lives, at once or after as many steps, is the program's fault") {
  CHECK(is_program_fault({"signal 11", 57}, {"signal 11", 0}));
  CHECK(is_program_fault({"exit code 3", 40}, {"exit code 3", 41}));
  CHECK(is_program_fault({"a hang", 0}, {"a hang", 1}));
  CHECK_FALSE(is_program_fault({"signal 11", 57}, {"signal 6", 0}));
  CHECK_FALSE(is_program_fault({"signal 11", 57}, {"signal 11", 500}));
  CHECK_FALSE(is_program_fault({"", 0}, {"", 0}));  // killed from outside
  CHECK_FALSE(is_program_fault({}, {"signal 11", 0}));
}
