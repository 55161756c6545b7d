#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "actors/rank/data_loader.hpp"
#include "launch/loop/data_position.hpp"
#include "launch/loop/rank.hpp"
#include "tensor_io/data/dataset.hpp"

namespace troupe {

/// The batches of a loader, one after the other: takes each from the DataLoader actor and grants it room for another.
class BatchSource {
 public:
  BatchSource(Rank& rank, RankParts& parts, std::shared_ptr<const Dataset> dataset);
  ~BatchSource();
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;

  /// As BatchStream::next.
  std::shared_ptr<const Batch> next();
  /// `next` has returned nullptr.
  bool is_over() const noexcept { return over_; }

  const DataCursor& cursor() const noexcept { return cursor_; }
  DataFacts facts() const { return {dataset_->size(), dataset_->files_hash()}; }
  const Dataset& dataset() const noexcept { return *dataset_; }
  /// The step under way was given up: its batches come again. They are cut anew if the world or the ranks' shares have
  /// changed.
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
  bool has_more_steps() const;
  std::optional<BatchDone> load_share();
  void stop();

  Rank& rank_;
  RankParts& parts_;
  std::shared_ptr<const Dataset> dataset_;
  caf::actor loader_;                   // makes the batches, or
  std::optional<DirectLoader> direct_;  // this thread does
  DataCursor cursor_;                   // the step that the batches of `step_` belong to ...
  std::int64_t steps_done_ = 0;         // ... and the number of steps done before it
  int loader_rank_ = 0, loader_world_size_ = 1;
  std::vector<std::int64_t> loader_shares_;
  std::deque<std::shared_ptr<const Batch>> again_, step_;  // to be handed out once more; of the step under way
  std::vector<BatchMaker> share_makers_;                   // if shares are taken on demand: the maker of each index's
  bool ended_ = false;                                     // the loader's batches
  bool over_ = false;                                      // the loop
};

}  // namespace troupe
