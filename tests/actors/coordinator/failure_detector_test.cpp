#include "actors/coordinator/failure_detector.hpp"

#include "tests/catch.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

const FailureDetector::Time kBegin{1h};

/// Ticks ten times a second up to `at`.
void tick_until(FailureDetector& detector, std::chrono::milliseconds from, std::chrono::milliseconds at) {
  for (auto now = from; now <= at; now += 100ms) detector.tick(kBegin + now);
}

FailureDetector detector_of_slot_2() {
  FailureDetector detector(RecoveryOptions{.suspect_after = 1s, .fence_after = 3s}, kBegin);
  detector.joined(2, kBegin);
  return detector;
}

}  // namespace

TEST_CASE("[L05] a silent process is suspected once, and lost later") {
  auto detector = detector_of_slot_2();
  CHECK_FALSE(detector.judge(2, kBegin + 1s).suspected);
  CHECK(detector.judge(2, kBegin + 1001ms).suspected);
  CHECK_FALSE(detector.judge(2, kBegin + 2s).suspected);
  CHECK_FALSE(detector.judge(2, kBegin + 3s).lost);
  const auto judgement = detector.judge(2, kBegin + 3001ms);
  CHECK(judgement.lost);
  CHECK(judgement.silent == 3001ms);
}

TEST_CASE("[L05] a process that answers again is suspected anew when it falls silent") {
  auto detector = detector_of_slot_2();
  CHECK_FALSE(detector.clear_suspicion(2));
  CHECK(detector.judge(2, kBegin + 2s).suspected);
  detector.heard(2, kBegin + 2s);
  CHECK(detector.clear_suspicion(2));
  CHECK_FALSE(detector.judge(2, kBegin + 3s).suspected);
  CHECK(detector.judge(2, kBegin + 4s).suspected);
}

TEST_CASE("[L05] silence accuses no process while the coordinator itself was held up") {
  auto detector = detector_of_slot_2();
  tick_until(detector, 100ms, 500ms);
  detector.tick(kBegin + 10s);
  CHECK_FALSE(detector.judge(2, kBegin + 10s).suspected);
  tick_until(detector, 10'100ms, 13'100ms);
  CHECK(detector.judge(2, kBegin + 13'100ms).lost);
}
