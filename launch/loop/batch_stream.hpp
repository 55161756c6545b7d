#pragma once
#include <cstddef>
#include <iterator>
#include <memory>

#include "launch/loop/rank.hpp"
#include "tensor_io/data/dataset.hpp"

namespace troupe {

class BatchSource;

/// The batches of Rank::loader as a range, to be gone through once. The rank's thread.
class BatchStream {
 public:
  explicit BatchStream(std::unique_ptr<BatchSource> source);
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
  /// The first call waits for the first batch.
  Iterator begin() { return Iterator(this); }
  /// The end of the range.
  Iterator end() { return {}; }

 private:
  std::unique_ptr<BatchSource> source_;
};

}  // namespace troupe
