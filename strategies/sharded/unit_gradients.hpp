#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "actors/rank/comm_hook.hpp"
#include "strategies/sharded/gradient_ring.hpp"
#include "strategies/sharded/sharded_parameters.hpp"

namespace troupe {

/// Gradients of sharded parameters on their way to the owners of the shards.
///
/// A post-accumulate hook per parameter copies its gradient into the whole gradient of its flat parameter, looks for
/// NaN and infinity in the same pass, and lets go of autograd's tensor. A whole gradient that is full goes to the
/// reducer, which reduces it, cuts it, and gives its memory back. Either every flat has its own buffer (`keep_whole`),
/// or a few go round (GradientRing).
///
/// On a device the hook checks nothing, since the host would have to wait. Autograd's tensors are kept until a whole
/// gradient is full, and packed by one kernel. The reducer's stream checks whether the reduced shard is finite
/// (device_checks). If shards lie in the host's memory, it goes there from the reducer's stream.
///
/// Compute's thread, and autograd's during a backward; the reduction runs on the reducer's.
class UnitGradients {
 public:
  struct Options {
    bool keep_whole = false;         ///< whole gradients stay in memory: micro-batches add up there
    bool every_micro_batch = false;  ///< reduce after each micro-batch and add up shards: less memory, more traffic
    at::ScalarType reduce_dtype = at::ScalarType::Undefined;  ///< Undefined: the parameters' own
    bool never_waits = false;  ///< backward does not wait for the reducer, which takes more memory
  };
  using FlatFull = std::function<void(std::int32_t position)>;
  using Flats = std::vector<std::int32_t>;

  /// Collective over `communicator` (the reducer's, while no step is under way). `replicas`: ranks that hold the same
  /// shard, or nullptr. The reducer's thread uses it, and `group`, the communicator of the parameters' group.
  UnitGradients(ShardedParameters& parameters, std::shared_ptr<Communicator> group,
                std::shared_ptr<Communicator> replicas, Options options, FlatFull full);
  ~UnitGradients();
  UnitGradients(const UnitGradients&) = delete;
  UnitGradients& operator=(const UnitGradients&) = delete;

  void begin_step();
  /// Returns whether this micro-batch is reduced.
  bool begin_backward(bool last, double weight);
  /// If this micro-batch is reduced: parameters without a gradient count as zero, and every flat is full now.
  void end_backward();
  /// Takes away the parameter's `.grad`: called by autograd's hooks, and by all other code that adds to one.
  void arrived(std::size_t parameter);

  /// Trainable flats in the order in which the reducer takes them.
  const Flats& order() const noexcept { return order_; }
  Flats arrival_order() const { return arrival_; }
  void set_order(Flats order);
  std::shared_ptr<std::vector<BucketView>> bucket_views() const noexcept { return views_; }
  std::shared_ptr<CommHook> reduction() const noexcept;

  /// On a device: the current stream waits for the reductions that the reducer has launched.
  void receive() const;
  /// Collective over `group` (the parameters' group). On a device: (ranks of the group, 2) f64 there, for each rank's
  /// shards the sum of squares and the number of elements that are not finite; the same on all ranks. Undefined on the
  /// CPU. Does not wait for the device.
  at::Tensor device_checks(Communicator& group) const;
  /// The first parameter of which this rank's part is not finite now, or -1. On a device it waits for each: only for
  /// diagnosis.
  std::int32_t find_not_finite() const;

  std::vector<bool> used() const;
  std::int32_t not_finite_parameter() const noexcept { return not_finite_; }
  /// Parameters used on any rank have their reduced slice as gradient, the others none.
  void set_gradients(const std::vector<bool>& used_anywhere);
  /// The reducer gave nothing back while backward waited for it.
  bool waited_in_vain() const;
  /// Of whole gradients: those that go round, those that stay, and earlier micro-batches'.
  std::int64_t buffer_bytes() const;

 private:
  struct Entry {
    std::int32_t flat = -1;
    std::int64_t offset = 0, numel = 0;
    bool used = false;        // a gradient came in this step, of a micro-batch that counts
    bool in_buffer = false;   // the flat's buffer holds data of this step
    bool in_earlier = false;  // so does `earlier`
    bool ready = false;       // counted in this backward
    at::Tensor source;        // on a device: autograd's own, to be packed with the rest of the flat
  };
  struct FlatState {
    at::Tensor buffer;   // (numel,) in the reduce dtype, while it holds data
    at::Tensor kept;     // the same, if it stays
    at::Tensor earlier;  // micro-batches that were not reduced, if buffers go round
    std::int32_t position = -1;
    std::int64_t turn = -1;  // in its ring, in this step
    std::int32_t pending = 0;
  };
  class Reduction;

  at::ScalarType reduce_dtype(const FlatParameter& flat) const;
  bool is_direct(const FlatParameter& flat) const;
  std::map<std::int32_t, at::Tensor> memory_of_shards(Communicator& group) const;
  at::Tensor view_of(const at::Tensor& flat, std::size_t parameter) const;
  void count(std::size_t parameter);
  void take_buffer(std::size_t flat);
  void send(std::size_t flat);
  /// Whether the kernel can pack it into its place.
  bool is_packable(std::size_t parameter, const at::Tensor& gradient) const;
  void pack_sources(std::size_t flat);
  GradientRing& ring(at::ScalarType dtype) { return *rings_.at(dtype); }

  ShardedParameters& parameters_;
  Options options_;
  FlatFull full_;
  std::vector<Entry> entries_;  // by parameter
  std::vector<FlatState> flats_;
  std::map<at::ScalarType, std::unique_ptr<GradientRing>> rings_;
  std::map<at::ScalarType, std::int64_t> turns_;  // of each ring, given out in this step
  at::Tensor checks_;                             // on a device: (trainable flats, 2) f64, by position
  Flats order_, arrival_;
  std::shared_ptr<std::vector<BucketView>> views_ = std::make_shared<std::vector<BucketView>>();
  std::shared_ptr<Reduction> reduction_;
  std::shared_ptr<UnitGradients*> alive_;
  bool reduces_ = true;
  int rounds_ = 0;  // of this step
  double weight_ = 1;
  std::int32_t not_finite_ = -1;
  std::int32_t sent_ = 0, sent_in_order_ = 0;
  std::vector<bool> was_sent_;  // by position
};

}  // namespace troupe
