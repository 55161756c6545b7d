#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "actors/compute/compute_core.hpp"
#include "actors/compute/metric_log.hpp"
#include "actors/step/vote.hpp"

namespace troupe {

/// This rank's vote on the step under way, and all ranks' votes. Compute's thread.
class VoteExchange {
 public:
  explicit VoteExchange(ComputeCore& core) : core_(core) {}

  /// The strategy has the model, in a new generation or in the first.
  void allocate();
  /// The data that the steps from now on are drawn from. The vote names a rank with another number of samples, or other
  /// files (Dataset::files_hash).
  void set_dataset(std::int64_t samples, std::uint64_t files_hash) noexcept;

  /// A step begins.
  void begin();
  /// This rank's.
  Vote& mine() noexcept { return mine_; }
  const Vote& mine() const noexcept { return mine_; }
  /// The values that the program logs: they go with the vote.
  MetricLog& log() noexcept { return log_; }
  /// Collective. All ranks', in their order.
  std::vector<Vote> exchange();
  std::vector<Vote> decode(std::string_view votes) const {
    return decode_votes(votes, core_.strategy->parameter_names().size());
  }
  /// `measured`: as `decide` has it.
  Decision decide_by(const std::vector<Vote>& votes, std::optional<std::int64_t> measured) const;
  /// Throws Error(not_finite) if this step is the last of max_skipped_steps in a row that were skipped.
  void count_skipped(const Decision& decision);

 private:
  std::string gather_logged(const std::string& mine);
  /// True while an overflow may be due to the loss scale.
  bool scaler_looks() const;

  ComputeCore& core_;
  Vote mine_;
  MetricLog log_;
  std::int64_t dataset_size_ = 0;
  std::uint32_t data_hash_ = 0;
  at::Tensor in_, out_;       // u8, encoded
  std::int64_t skipped_ = 0;  // in a row, as this process saw it
};

}  // namespace troupe
