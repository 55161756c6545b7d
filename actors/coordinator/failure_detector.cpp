#include "actors/coordinator/failure_detector.hpp"

#include <utility>

namespace troupe {

bool FailureDetector::clear_suspicion(int slot) { return std::exchange(lives_[slot].suspected, false); }

void FailureDetector::tick(Time now) {
  constexpr std::chrono::milliseconds kHeldUp{600};
  if (now - last_tick_ > kHeldUp) {
    for (auto& [slot, life] : lives_) life.heard = now;
  }
  last_tick_ = now;
  ++ticks_;
}

FailureDetector::Judgement FailureDetector::judge(int slot, Time now) {
  auto& life = lives_[slot];
  const auto silent = now - life.heard;
  Judgement judgement;
  judgement.silent = std::chrono::duration_cast<std::chrono::milliseconds>(silent);
  judgement.lost = silent > recovery_.fence_after;
  if (silent > recovery_.suspect_after) judgement.suspected = !std::exchange(life.suspected, true);
  return judgement;
}

}  // namespace troupe
