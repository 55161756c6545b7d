#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troupe {

/// How the samples of a step are shared out over ranks (config: balance).
struct Balance {
  enum class By : std::uint8_t { equal, speed, weights };
  By by = By::equal;
  std::vector<double> weights = {};  ///< by rank

  /// `equal`, `speed`, or weights by rank as in `2,1`. Returns the mistake in `text`, or an empty string.
  static std::string parse(const std::string& text, Balance& balance);
  /// Throws Error(usage) if these are not the weights of a job that begins with `ranks` ranks.
  void check(int ranks) const;
};

/// `total` samples cut into one share for each rank, so that the last rank is done as early as possible: each sample
/// goes to the rank that would be done first with it. `speeds` are samples per time, in any unit. No share is below
/// one. Pure; ties go to the lower rank. Throws Error(usage) if there are fewer samples than ranks.
std::vector<std::int64_t> share_out(std::span<const double> speeds, std::int64_t total);

/// Each rank's share of a micro-batch, from the ranks' own times in the votes. Pure: the same votes give the same
/// shares on every rank.
///
/// A rank's time for its share is the median over kWindow steps, so that a rare pause does not count. New shares come
/// when the slowest rank would be done earlier by more than kGain of its time: noise would win less than that. A rank
/// whose steps have a fixed cost has its right share after two or three changes. After each change the window begins
/// anew.
class BatchSplit {
 public:
  static constexpr std::size_t kWindow = 16;  ///< steps
  static constexpr double kGain = 0.08;       ///< share of the slowest rank's time that a change must win

  BatchSplit() = default;  ///< equal parts, for ever
  /// `total`: samples of a micro-batch, over all ranks. Throws Error(usage) if there are fewer samples than ranks.
  BatchSplit(Balance balance, std::int64_t total, int ranks);

  /// Another membership: forgets the measured times. Weights stay while there are as many ranks as weights, and are
  /// equal otherwise.
  void reset(int ranks);
  /// Samples by rank; empty: equal parts.
  const std::vector<std::int64_t>& by_rank() const noexcept { return shares_; }
  /// One step: each rank's time for its share, in ms. True: the next step has other shares.
  bool add(std::span<const double> own_ms);
  /// Of the last change: `shares of the batch are now 48, 16 samples (ranks took 10.2, 30.9 ms for 32, 32)`.
  const std::string& describe() const noexcept { return change_; }

 private:
  Balance balance_;
  std::int64_t total_ = 0;
  std::vector<std::int64_t> shares_;
  std::vector<std::vector<double>> recent_;  // by rank
  std::string change_;
};

}  // namespace troupe
