#pragma once
#include <cstdint>
#include <deque>
#include <iterator>
#include <memory>
#include <optional>
#include <vector>

#include "actors/rank/data_loader.hpp"
#include "launch/rank/rank.hpp"
#include "tensor_io/data/dataset.hpp"

namespace troupe {

/// The batches of a loader as a range; each increment takes the next one from the DataLoader actor and grants it room
/// for another.
class BatchStream {
 public:
  BatchStream(Rank& rank, RankParts& parts, std::shared_ptr<const Dataset> dataset);
  ~BatchStream();
  BatchStream(BatchStream&&) noexcept;
  BatchStream& operator=(BatchStream&&) = delete;

  /// The next batch, or nullptr at the end of the last epoch or after a stop request. Waits for the loader.
  std::shared_ptr<const Batch> next();

  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using pointer = const Batch*;
    using reference = const Batch&;
    Iterator() = default;
    explicit Iterator(BatchStream* stream) : stream_(stream) { ++*this; }
    reference operator*() const { return *batch_; }
    pointer operator->() const { return batch_.get(); }
    Iterator& operator++() {
      batch_ = stream_->next();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(const Iterator& other) const { return batch_ == other.batch_; }

   private:
    BatchStream* stream_ = nullptr;
    std::shared_ptr<const Batch> batch_;
  };
  Iterator begin() { return Iterator(this); }
  Iterator end() { return {}; }

  const DataCursor& cursor() const noexcept { return cursor_; }
  const Dataset& dataset() const noexcept { return *dataset_; }
  /// The step under way was given up: its batches come again. They are cut anew if the world or the ranks' shares have
  /// changed. Nothing to do for a program: step does it.
  void rewind();
  /// The step under way is done.
  void committed();
  /// One of this rank's shares of it is (DemandShares).
  void share_ended() { step_.clear(); }

 private:
  std::shared_ptr<const Batch> take();
  DataCursor cursor_of_others(std::int64_t steps_per_epoch) const;
  void note_cursor() const;
  SamplerOptions sampling() const;
  std::shared_ptr<const Batch> make_here();
  std::shared_ptr<const Batch> receive();
  void start();
  void start_shares(DataLoaderOptions options);
  std::optional<BatchDone> load_share();
  void stop();

  Rank* rank_;
  RankParts* parts_;
  std::shared_ptr<const Dataset> dataset_;
  caf::actor loader_;                   // who makes the batches, or
  std::optional<DirectLoader> direct_;  // this thread does
  DataCursor cursor_;                   // the step that the batches of `step_` belong to ...
  std::int64_t steps_done_ = 0;         // ... and how many were done before it
  int loader_rank_ = 0, loader_world_size_ = 1;
  std::vector<std::int64_t> loader_shares_;
  std::deque<std::shared_ptr<const Batch>> again_, step_;  // to be handed out once more; of the step under way
  std::vector<BatchMaker> share_makers_;                   // where shares are taken by demand: who makes which index's
  bool ended_ = false;
};

}  // namespace troupe
