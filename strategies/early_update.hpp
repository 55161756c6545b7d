#pragma once
#include <torch/torch.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/comm_hook.hpp"
#include "tensor_io/bucket_plan.hpp"
#include "tensor_io/communicator.hpp"
#include "tensor_io/optimizer.hpp"

namespace troupe {

/// The optimizer's update of a step, made bucket by bucket while backward goes on, in a copy of parameters and moments that nobody sees
/// until the step commits; then the copies change places. So a step stays a transaction, though its update is over before the vote.
///
/// The copies are two flat tensors of each, laid out as the gradients are, in memory of the lane: on one host each rank updates 1 /
/// world_size of the elements and pushes the result to the others (Communicator::all_reduce_update). The sharded update is that of Xu et
/// al., "Automatic Cross-Replica Sharding of Weight Update in Data-Parallel Training" (2020); here no rank gives its share of the state
/// away, so that any rank may be lost.
///
/// Parameters and moments are the same tensors throughout; what lies behind them changes with each commit (set_data).
/// Compute's thread, but for `reduce`, the reducer's: between `begin` and the end of the step's last bucket.
class EarlyUpdate {
 public:
  /// Moves parameters and moments, the values stay. Collective: `lane` gives the memory; it must be idle. `parameters`: all of the model,
  /// in layout order, f32. Throws what allocate throws, and nothing has moved then.
  EarlyUpdate(const std::vector<at::Tensor>& parameters, const BucketPlan& plan, Optimizer& optimizer, Communicator& lane);

  /// The gradients have another layout, of the same parameters. May come in a step whose forward has run.
  void lay_out(const BucketPlan& plan);
  /// The update of the step under way, at this rate of the schedule. False, and nothing begun, in a step that was laid out anew: its
  /// forward has kept views of what would be written. Throws Error(usage) for a parameter that can't be updated so.
  bool begin(double lr);
  bool begun() const noexcept { return begun_; }
  /// The bucket's gradients become its elements' update. Throws what the lane throws.
  void reduce(const BucketView& bucket, Communicator& lane) const;
  /// Shows what the step made of the parameters that are `used` anywhere, by parameter; the others stay. All buckets must be reduced.
  void commit(const std::vector<bool>& used);
  /// The step came to nothing.
  void drop() noexcept { begun_ = false; }

  std::int64_t bytes() const noexcept;  ///< of both copies

 private:
  struct Slot {
    std::size_t parameter = 0, bucket = 0;  // in layout order, in the plan
    std::int64_t offset = 0, numel = 0, padded = 0;
    std::optional<std::size_t> element;  // in elements_; none: the optimizer does not have it
  };

  void place_slots(const BucketPlan& plan);
  void move_to(int copy);
  void take_in(at::Tensor& tensor, const at::Tensor& flat, const Slot& slot);
  at::Tensor view(const at::Tensor& flat, const Slot& slot, const at::Tensor& like) const;
  void check_parameters() const;
  void make_runs(double lr);

  std::vector<at::Tensor> parameters_;
  std::vector<ElementState> elements_;
  std::array<UpdatedState, 2> copies_;
  std::vector<Slot> slots_;  // in order of their offsets, one for each tensor
  std::vector<Bucket> buckets_;
  std::vector<std::vector<ReducedUpdate::Run>> runs_;  // by bucket, from its first element
  int live_ = 0;
  bool laid_out_ = false;            // since the last `begin`
  std::atomic<bool> begun_ = false;  // the reducer may still look when an interrupted step is dropped
};

/// Averages a bucket, or makes its part of the update where the step has begun one.
class EarlyUpdateHook final : public CommHook {
 public:
  void reduce(BucketView& bucket, Communicator& communicator) override;
  /// Compute's thread, while the reducer has nothing to do.
  void set(std::shared_ptr<const EarlyUpdate> update) { update_ = std::move(update); }

 private:
  std::shared_ptr<const EarlyUpdate> update_;
};

}  // namespace troupe
