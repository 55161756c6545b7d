#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "actors/rank/data_cursor.hpp"

namespace troupe {

class BatchSource;
class UnevenLoop;

/// The facts by which a checkpoint distinguishes its data from others.
struct DataFacts {
  std::int64_t samples = 0;  ///< 0: unknown
  std::uint64_t files = 0;   ///< Dataset::files_hash
};

/// For the user: that `now` differs from before, and the consequence; empty: no difference is known.
std::string data_change(const DataFacts& before, const DataFacts& now);

/// The place of a program's loop in the data: in a loader's batches, in the rounds of uneven batches, or in neither.
/// Compute's thread.
class DataPosition {
 public:
  /// A checkpoint gives the beginning of the first loop: at `start` with a loader, at `start.epoch` and `round` with
  /// uneven batches. `of`: the data of that place.
  void resume_at(const DataCursor& start, std::int64_t round, const DataFacts& of) noexcept {
    start_ = start;
    start_round_ = round;
    start_data_ = of;
  }
  /// The data of a checkpoint's place, at the first call.
  DataFacts take_start_data() noexcept { return std::exchange(start_data_, {}); }

  /// The next step, or the next loop and round.
  DataCursor cursor() const;
  /// Batches are being handed out; else the place in the data is not known.
  bool has_loop() const noexcept { return source_ != nullptr || uneven_ != nullptr; }
  /// Of a loader: no batch of the next epoch is used up yet.
  bool epoch_is_over() const;
  /// Before a loop begins. Throws Error(usage) while another one is under way: a rank's place in the data is one.
  void refuse_second() const;

  /// The loader that is being read; nullptr: there is none.
  BatchSource* source() const noexcept { return source_; }
  /// The beginning of a loader that is made now. Empty: the place of the other ranks, on a `newcomer`.
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
