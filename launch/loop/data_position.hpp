#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "actors/rank/data_cursor.hpp"

namespace troupe {

class BatchSource;
class UnevenLoop;

/// What the data is, as far as a checkpoint can tell it from other data.
struct DataFacts {
  std::int64_t samples = 0;  ///< 0: unknown
  std::uint64_t files = 0;   ///< Dataset::files_hash
};

/// For a person: that `now` is not what it was, and what follows; empty: it is, as far as is known.
std::string data_change(const DataFacts& before, const DataFacts& now);

/// Where in the data a program's loop is: in a loader's batches, in the rounds of uneven batches, or in neither.
/// Compute's thread.
class DataPosition {
 public:
  /// A checkpoint says where the first loop begins: at `start` with a loader, at `start.epoch` and `round` with uneven
  /// batches. `of`: the data in which that place is.
  void resume_at(const DataCursor& start, std::int64_t round, const DataFacts& of) noexcept {
    start_ = start;
    start_round_ = round;
    start_data_ = of;
  }
  /// The data that a checkpoint's place is in, at the first call.
  DataFacts take_start_data() noexcept { return std::exchange(start_data_, {}); }

  /// The step, or the loop and round, that comes next.
  DataCursor cursor() const;
  /// Batches are being handed out; else nothing says where the data stands.
  bool has_loop() const noexcept { return source_ != nullptr || uneven_ != nullptr; }
  /// Of a loader: no batch of the next epoch is used up yet.
  bool epoch_is_over() const;

  /// The loader that is being read; nullptr: there is none.
  BatchSource* source() const noexcept { return source_; }
  /// Where a loader begins that is made now. Empty: where the other ranks are, on a `newcomer`.
  std::optional<DataCursor> begin_source(bool newcomer) noexcept;
  void set_source(BatchSource* source) noexcept { source_ = source; }

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
  DataFacts start_data_;
  BatchSource* source_ = nullptr;
  bool had_source_ = false;
  const UnevenLoop* uneven_ = nullptr;
  std::int64_t uneven_loops_ = 0;  // that began
  DataCursor uneven_start_;
  bool interrupted_ = false;
};

}  // namespace troupe
