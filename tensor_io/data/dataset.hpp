#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor_io/layout/named_tensors.hpp"

namespace troupe {

/// A sample's place in the run. Augmentation may depend on it, so that it is the same for any number of ranks and
/// workers.
struct SampleContext {
  std::uint64_t seed = 0;  ///< the run's (config: seed)
  std::int64_t epoch = 0;  ///< 0-based
};

/// One sample, on the CPU, without a batch dimension. Any of its tensors may be left out, but not all of them.
struct Example {
  at::Tensor input = {};
  at::Tensor target = {};   ///< one label, or any other form that the loss wants
  NamedTensors named = {};  ///< further ones: `{{"input_ids", ids}, {"labels", labels}}`
  std::int64_t index = -1;  ///< its number in the data set; get_batch fills it before collate

  /// The tensors that are there, by name: input, target, then the named ones.
  NamedTensors fields() const;
};

class DeviceEvent;

/// One rank's part of a micro-batch.
struct Batch {
  at::Tensor input;              ///< (n, ...)
  at::Tensor target;             ///< (n, ...)
  NamedTensors named;            ///< further ones, (n, ...) unless collate makes another shape
  at::Tensor index;              ///< (n,) i64, the samples' numbers in the data set
  std::int64_t epoch = 0;        ///< that the samples are of, 0-based
  std::int64_t step = 0;         ///< optimizer step within the epoch
  std::int64_t micro_batch = 0;  ///< 0 .. grad_accum_steps - 1
  std::int64_t counted = 0;  ///< n; 0: an epoch's last batch has none for this rank, which repeats one with weight 0
  double weight =
      1;  ///< the weight of its mean loss: this rank's share of the step's samples times ranks and micro-batches
  bool last_of_step = true;                    ///< the optimizer step follows
  bool last_of_epoch = false;                  ///< of the data
  std::shared_ptr<const DeviceEvent> arrived;  ///< on a device: its fields are there after it (DeviceFeed); else empty

  /// The field of this name, "input" and "target" among them; it lives as long as the batch. Throws Error(usage) with
  /// the names that there are.
  const at::Tensor& operator[](std::string_view name) const;
  /// The tensors that are there, by name: input, target, then the named ones. The index is not one of them. Code that
  /// copies or moves a batch uses fields and set_fields, so that it loses none.
  NamedTensors fields() const;
  /// Replaces all fields: "input" and "target" go to the members of this name, the others to `named`.
  void set_fields(const NamedTensors& fields);
  /// Samples in it: the index has one entry each. Without an index it is the first field's first dimension.
  std::int64_t numel() const;
};

/// A data set with random access. Implementations are immutable after construction: loader workers call them from many
/// threads.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;  ///< samples
  /// One sample, the same on any thread for the same index and context.
  virtual Example get(std::int64_t index, const SampleContext& context) const = 0;
  /// Turns samples into a batch: its fields, not its index. By default `stack` (collate.hpp), which wants equal names,
  /// shapes and dtypes; override it with `pad_to_longest` or with your own code. Not for data sets that override
  /// get_batch. There is one sample at least; many threads at once. An exception ends the job.
  virtual Batch collate(const std::vector<Example>& examples) const;
  /// Collates the results of `get` by default; data in memory overrides it with one gather. Fills fields and index.
  virtual Batch get_batch(std::span<const std::int64_t> indices, const SampleContext& context) const;
  /// Whether a batch of this many samples takes less time than waking a thread to make it (some 50 µs): small, in
  /// memory, nothing to decode. Then the requesting thread makes it (DirectLoader). Constant.
  virtual bool quick(std::int64_t samples) const { return false; }
  /// If reading from front to back is the quick way: the number of samples of each file, in the order of the samples'
  /// numbers (they add up to size()). Each rank then reads other files (ShardOrder). Empty: all samples are equally
  /// quick. Constant.
  virtual std::vector<std::int64_t> shard_sizes() const { return {}; }
  /// Hash of the samples' files: their names below data_dir and the size of each. Ranks compare it, so that none trains
  /// on other data unnoticed. 0: nothing is known of files. Constant.
  virtual std::uint64_t files_hash() const { return 0; }
  /// Events since the last call that the user should know, a line each. Any thread.
  virtual std::vector<std::string> take_notices() const { return {}; }
  /// For throughput: the number of tokens in a text's sample; 0 if the word means nothing.
  virtual std::int64_t tokens_per_sample() const { return 0; }
  /// For logs and errors: "digits", a path.
  virtual std::string name() const { return "data set"; }
  /// For the line at a run's start (data_line.hpp): how the files were read; of held-out data, how it was chosen. Its
  /// reader sets it before any other thread sees the data set. Empty: the line has the name.
  const std::string& description() const noexcept { return description_; }
  /// Sets the description.
  void set_description(std::string text) { description_ = std::move(text); }

 private:
  std::string description_;
};

}  // namespace troupe
