#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

enum class CollectiveKind : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce,
  gather,
  scatter,
  all_to_all,
  send,
  recv,
  barrier,
  split,
  allocate
};

std::string_view to_string(CollectiveKind kind) noexcept;

/// One rank's next action on a communicator. Two ranks that meet in a collective must agree in everything but
/// `started_ns`, `finished` and, for send and recv, the peer.
struct CollectiveRecord {
  std::uint64_t sequence = 0;  ///< counts from 1 on each communicator, collectives and point-to-point calls apart
  CollectiveKind kind = CollectiveKind::barrier;
  std::uint8_t reduce_op = 0;    ///< ReduceOp, 0 if there is none
  std::int8_t dtype = -1;        ///< at::ScalarType, -1 if there is no tensor
  std::int32_t peer = -1;        ///< root, destination or source
  std::int64_t numel = 0;        ///< elements of this rank's contribution
  std::int64_t step = -1;        ///< optimizer step that it belongs to
  std::array<char, 48> label{};  ///< its purpose: "bucket 3", "vote"; NUL terminated
  std::int64_t started_ns = 0;   ///< steady clock
  bool finished = false;

  bool point_to_point() const noexcept { return kind == CollectiveKind::send || kind == CollectiveKind::recv; }
  std::string describe() const;  ///< `all_reduce of 262144 f32 (bucket 3, step 12)`
  std::uint64_t fingerprint()
      const noexcept;  ///< equal on all ranks of a collective and on both of a send; label and step included
};

/// The last 4,096 collectives of one communicator on one rank. The launching thread writes it, and any other may read
/// it (the watchdog, which names a rank that hangs; the dump after a failure).
class CollectiveLedger {
 public:
  static constexpr std::size_t kCapacity = 4096;

  /// The step that records started from now on belong to. Launching thread.
  void set_step(std::int64_t step) noexcept { step_.store(step, std::memory_order_relaxed); }
  std::int64_t step() const noexcept { return step_.load(std::memory_order_relaxed); }

  /// Fills in sequence, step, start time. Launching thread.
  CollectiveRecord begin(CollectiveRecord record);
  void finish() noexcept;

  /// The collective that is under way now, if any. Any thread.
  std::optional<CollectiveRecord> in_flight() const;
  /// The number of finished ones, point-to-point calls apart. Any thread.
  std::uint64_t finished_count() const noexcept { return finished_.load(std::memory_order_acquire); }
  /// Time spent in finished collectives so far, mostly waiting for the others. Any thread.
  std::chrono::nanoseconds time_inside() const noexcept {
    return std::chrono::nanoseconds(inside_ns_.load(std::memory_order_relaxed));
  }
  /// Oldest first, at most kCapacity. Any thread.
  std::vector<CollectiveRecord> snapshot() const;

 private:
  std::atomic<std::int64_t> step_{-1};
  std::atomic<std::uint64_t> finished_{0};
  std::atomic<std::int64_t> inside_ns_{0};
  std::atomic<std::uint64_t> ended_{
      0};  // started_ as of the last finish(); the last record's `finished` is in here, not in the ring
  mutable std::mutex
      mutex_;  // uncontended: taken by the launching thread once per collective, by a reader a few times a second
  std::uint64_t started_ = 0;
  std::uint64_t collectives_ = 0;
  std::uint64_t point_to_point_ = 0;
  std::vector<CollectiveRecord> ring_;
};

}  // namespace troupe
