#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "actors/step/logged_values.hpp"
#include "actors/stragglers/straggler.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {

/// The numbers of a vote, as they travel.
struct VoteNumbers {
  std::int64_t step = 0;
  std::uint64_t layout_hash = 0;     ///< parameters and bucket plan that this step's gradients were laid out by
  std::uint64_t parameter_hash = 0;  ///< of the replicated parameters before this step's update; 0: not taken in it
  std::int64_t dataset_size = 0;     ///< samples of the data set that the loader draws from; 0: there is no loader
  double loss_sum = 0;               ///< over the rank's micro-batches: of means times samples, or of sums
  double samples = 0;
  double correct = 0;        ///< samples that were right, if the job counts them
  double gradient_norm = 0;  ///< of the reduced gradient; 0 if it was not requested
  static constexpr std::int64_t kNoLoss = -2, kMeans = -1;
  std::int64_t elements = kNoLoss;         ///< in the sums; kMeans; kNoLoss: another rank has this one's losses
  double gradient_divisor = 1;             ///< the reduced gradient is that of the sums, divided by this
  std::int32_t not_finite_parameter = -1;  ///< first parameter whose local gradient is NaN or infinite
  std::uint8_t not_finite_loss = 0;
  static constexpr std::uint8_t kLeaves = 255;
  std::uint8_t stop_signal = 0;    ///< SIGINT, SIGTERM: end after this step; kLeaves: this rank alone
  std::uint8_t rebuild = 0;        ///< rank 0: gradients came in another order than planned
  std::uint8_t made_by_hook = 0;   ///< it was finite on every rank before the communication hook reduced it
  SectionTimes own;                ///< this rank's time for its own part of the step
  std::uint32_t data_hash = 0;     ///< of the data set's files (Dataset::files_hash), folded; 0: no hash
  std::uint32_t logged_bytes = 0;  ///< of this rank's logged values, which travel behind all votes
  std::uint32_t ranks = 0;         ///< that vote together; 0: nothing is known of logged values
};
static_assert(std::is_trivially_copyable_v<VoteNumbers> && sizeof(VoteNumbers) == 112);

/// Each rank's report at the end of a step, before anything is applied. All ranks gather all votes on the program
/// communicator and decide alike.
struct Vote : VoteNumbers {
  std::vector<bool> used;  ///< by parameter: has a gradient on this rank
  LoggedValues logged;
};

/// Of all ranks.
struct StepNumbers {
  double loss = 0;      ///< mean over the samples of all ranks and micro-batches, or over the elements of Loss::sum
  double max_loss = 0;  ///< the largest of the ranks' means
  double samples = 0;
  double correct = 0;
  double gradient_norm = 0;  ///< 0 if neither clipping nor a caller requested it
  LoggedValues logged;       ///< the program's own metrics, of all ranks
};

struct Decision : StepNumbers {
  bool commit = true;
  std::string reason;         ///< why not, for the log: `rank 1: the gradient of fc.weight is not finite`
  std::int32_t culprit = -1;  ///< the rank that the reason names
  bool not_finite = false;
  bool loss_not_finite = false;  ///< a rank's loss, not gradients alone
  int stop_signal = 0;
  std::vector<int> leaving;  ///< ranks that leave after this step
  bool rebuild = false;
  /// The factor that makes the reduced gradient the step's: 1, or gradient_divisor over the elements of all ranks.
  double gradient_factor = 1;
  std::vector<bool> used;  ///< used on at least one rank
};

/// Bytes of an encoded vote for a model with this number of parameters: the same on all ranks.
std::size_t vote_bytes(std::size_t parameters) noexcept;
void encode_vote(const Vote& vote, std::span<std::uint8_t> bytes);
Vote decode_vote(std::span<const std::uint8_t> bytes, std::size_t parameters);
/// All ranks' votes, one after the other, then their logged values. Throws Error(bad_data) if they are not votes.
std::vector<Vote> decode_votes(std::string_view votes, std::size_t parameters);

/// Whether a NaN or infinite number ends the job; the step is skipped otherwise.
struct StopOn {
  bool loss = true, gradient = true;
};

/// Pure: the same votes give the same decision on every rank. Throws Error(mismatch) naming the ranks whose layout or
/// step differs from the majority's, and Error(not_finite) if `stop` is set for it. `measured`: the step of the losses
/// and gradients in the votes, if it is not the one that is voted on.
Decision decide(std::span<const Vote> votes, std::span<const std::string> parameter_names, StopOn stop,
                std::optional<std::int64_t> measured = {});

}  // namespace troupe
