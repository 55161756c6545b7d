#pragma once
#include <cstdint>
#include <optional>
#include <utility>

#include "actors/rank/data_loader.hpp"

namespace troupe {

class BatchStream;
class UnevenLoop;

/// Where in the data a program's loop is: in a stream, in the rounds of uneven batches, or in neither. Compute's
/// thread.
class DataPosition {
 public:
  /// A checkpoint says where the first loop begins: at `start` in a stream, at `start.epoch` and `round` with uneven
  /// batches.
  void resume_at(const DataCursor& start, std::int64_t round) noexcept {
    start_ = start;
    start_round_ = round;
  }

  /// The step, or the loop and round, that comes next.
  DataCursor cursor() const;
  /// Batches are being handed out; else nothing says where the data stands.
  bool has_loop() const noexcept { return stream_ != nullptr || uneven_ != nullptr; }
  /// Of a stream: no batch of the next epoch is used up yet.
  bool epoch_is_over() const;

  /// The stream that is being read; nullptr: there is none.
  BatchStream* stream() const noexcept { return stream_; }
  /// Where a stream begins that is made now. Empty: where the other ranks are, on a `newcomer`.
  std::optional<DataCursor> begin_stream(bool newcomer) noexcept;
  void set_stream(BatchStream* stream) noexcept { stream_ = stream; }
  /// `to` takes the place of `from`, if that is being read.
  void replace_stream(const BatchStream* from, BatchStream* to) noexcept {
    if (stream_ == from) stream_ = to;
  }

  /// Returns the loop's number among the program's, from 0.
  std::int64_t begin_uneven(const UnevenLoop* loop) noexcept;
  /// False: `loop` is not the one under way.
  bool end_uneven(const UnevenLoop* loop) noexcept;
  /// The loop and round that the first of them goes on from.
  const DataCursor& uneven_start() const noexcept { return uneven_start_; }
  void set_uneven_start(const DataCursor& start) noexcept { uneven_start_ = start; }
  /// The step under way comes again.
  void interrupt() noexcept { interrupted_ = true; }
  /// Whether one did since the last call.
  bool take_interrupted() noexcept { return std::exchange(interrupted_, false); }

 private:
  DataCursor start_;
  std::int64_t start_round_ = 0;
  BatchStream* stream_ = nullptr;
  bool had_stream_ = false;
  const UnevenLoop* uneven_ = nullptr;
  std::int64_t uneven_loops_ = 0;  // that began
  DataCursor uneven_start_;
  bool interrupted_ = false;
};

}  // namespace troupe
