#pragma once
#include <cstdint>
#include <vector>

namespace troupe {

/// How many units fsdp gathers ahead, by what forward and backward wait for gathers.
///
/// After kSteps measured steps it tries twice the depth, and after as many more it stays there if the wait is shorter
/// by kGain, and tries the next, else goes back and rests for kEvery steps. It rests, too, where waits are less than
/// kWorth of a step. Pure, but for what the caller makes of the ranks' times: all ranks must decide by the same ones.
class PrefetchTuner {
 public:
  static constexpr int kSteps = 20, kEvery = 500;
  static constexpr double kWorth = 0.02, kGain = 0.1;

  /// A look at the times: medians of this rank's steps, in ms.
  struct Times {
    double waited = 0, step = 0;
  };

  /// `most`: units that there are to gather.
  PrefetchTuner(std::int64_t depth, std::int64_t most) : depth_(depth), most_(most) {}

  /// One step's times. Whether it is time to decide: alike on all ranks that take the same steps.
  bool add(const Times& step);
  /// Of the steps since the last decision.
  Times measured() const;
  /// By what all ranks measured. Returns the depth for the steps to come.
  std::int64_t decide(const Times& times);

  std::int64_t depth() const noexcept { return depth_; }
  std::int64_t decisions() const noexcept { return decisions_; }

 private:
  std::vector<double> waited_, step_;
  std::int64_t depth_, most_, before_ = 0;  // before_: the depth before the one that is tried
  double waited_before_ = 0;
  bool trying_ = false;
  int rest_ = 0;
  std::int64_t decisions_ = 0;
};

}  // namespace troupe
