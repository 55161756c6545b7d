#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "tensor_io/base/error.hpp"

namespace troupe {

/// A parameter server's state in one round: the sums of the gradients that came, and the next share of the round's
/// samples.
///
/// A round has `updates` updates of `shares` shares each. Shares are handed out on demand; only the first `ranks` are
/// fixed: rank r has number r. So every rank is in every round, and none has to ask before it begins. A gradient goes
/// into the update that is open when it comes. With its last share's gradient the update is complete, and never changes
/// again in the round. A rank that has applied v updates computes gradients of version v. The round's end bounds the
/// staleness: a gradient is at most updates - 1 behind the update that it goes into (Ho et al., "More Effective
/// Distributed ML via a Stale Synchronous Parallel Parameter Server", NeurIPS 2013).
///
/// Any thread.
class UpdateServer {
 public:
  struct Round {
    int ranks = 1;
    std::int64_t updates = 1;
    std::int64_t shares = 1;  ///< of an update; ranks or more
  };
  /// `like`: (numel,) of each dtype, the form of a gradient. `parameters`: of the model.
  UpdateServer(Round round, const std::vector<at::Tensor>& like, std::int64_t parameters);

  /// One mean gradient.
  struct Update {
    std::vector<at::Tensor> gradients;  ///< (numel,) of each dtype: the mean over the shares in it
    at::Tensor used;                    ///< (parameters,) u8: 1 if a share had a gradient
  };
  struct Answer {
    std::int64_t share = -1;    ///< the sender's next one; -1: there are none left
    std::int64_t complete = 0;  ///< number of complete updates
  };

  /// All ranks have applied all updates of the round before.
  void begin_round();
  /// `rank`'s gradient, computed after `version` of the round's updates. Throws Error(internal) if that is more than
  /// updates - 1 behind.
  Answer add(int rank, std::int64_t version, const Update& gradient);
  /// Waits until all updates of the round are complete. Throws Error(timeout), and the reason given to `fail`.
  void wait_for_all(std::chrono::milliseconds timeout);
  /// A complete one.
  const Update& update(std::int64_t number) const { return updates_.at(static_cast<std::size_t>(number)); }
  /// Ends all waits; the first reason wins.
  void fail(const ErrorReport& reason);

  std::int64_t updates() const noexcept { return round_.updates; }  ///< of a round
  /// Gradients so far, by the number of updates that they were behind the one that they went into.
  std::vector<std::int64_t> staleness() const;
  /// Shares so far, by rank.
  std::vector<std::int64_t> shares() const;

 private:
  void throw_if_failed() const;
  std::int64_t all_shares() const { return round_.updates * round_.shares; }

  const Round round_;
  mutable std::mutex mutex_;
  std::condition_variable all_complete_;
  // Guarded by mutex_; of `updates_` only the ones that are not complete.
  std::vector<Update> updates_;
  std::int64_t arrived_ = 0, handed_out_ = 0;  // gradients, shares of the round
  std::vector<std::int64_t> staleness_, shares_;
  std::optional<ErrorReport> failed_;
};

}  // namespace troupe
