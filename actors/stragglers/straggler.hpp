#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace troupe {

/// A rank's time for its own part of a step, in ms, without waits for other ranks.
struct SectionTimes {
  float data_ms = 0;      ///< waiting for its data loader
  float forward_ms = 0;   ///< from a batch's arrival to its loss
  float backward_ms = 0;  ///< autograd
  float total_ms() const noexcept { return data_ms + forward_ms + backward_ms; }
};

/// A rank that keeps the others waiting, step after step.
struct Straggler {
  int rank = -1;
  std::string host;
  std::string section;               ///< with most of the difference: data, forward, backward
  double ratio = 1;                  ///< of its own time to that of the others
  double own_ms = 0, others_ms = 0;  ///< a step's, medians over the window

  std::string describe() const;  ///< `rank 2 (h3) is slow: 31.0 ms of work in a step, 3.1 times the others' median,
                                 ///< most of it in forward`
};

/// Finds slow ranks by the ranks' own times in the votes. Pure: the same votes give the same answer on every
/// rank.
///
/// It takes each rank's median over the last kWindow steps, so that a rare pause does not count. It compares this with
/// the median of the *other* ranks' medians: among two ranks the median of both would hide even a rank that is three
/// times as slow. A slow rank is kRatio times as slow, and the difference is beyond the scatter of the steps: kSigmas
/// standard errors of a median. Their scale is the median absolute deviation of each rank's steps from its own median
/// (1.4826 MAD estimates a standard deviation: Rousseeuw and Croux, J. Am. Stat. Assoc. 88, 1993). It stays slow until
/// it is below kRecovered times the others.
class StragglerWatch {
 public:
  static constexpr std::size_t kWindow = 16;  ///< steps; a slow rank shows when its slow steps are more than half of it
  static constexpr std::size_t kEvery = 4;    ///< steps between two looks
  static constexpr double kRatio = 1.4;       ///< a true ratio of 1.5 matters, and a measured one scatters around it
  static constexpr double kRecovered = 1.25;
  static constexpr double kSigmas = 6;
  static constexpr double kMinimumMs = 1;  ///< smaller differences do not matter

  /// One step, by rank. True if the slow ranks are others than before.
  bool add(std::span<const SectionTimes> by_rank);
  /// By rank; the caller fills in the hosts.
  const std::vector<Straggler>& slow() const noexcept { return slow_; }
  /// Another membership: forget all.
  void reset();

 private:
  bool look();

  std::size_t steps_ = 0;
  std::vector<std::vector<SectionTimes>> recent_;  // by rank: a ring of kWindow
  std::vector<Straggler> slow_;
};

}  // namespace troupe
