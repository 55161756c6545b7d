#pragma once
#include <torch/torch.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "actors/rank/comm_hook.hpp"
#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/layout/bucket_plan.hpp"
#include "tensor_io/optimizer/optimizer.hpp"

namespace troupe {

/// The optimizer's update of a step, made bucket by bucket while backward goes on. It is made in a copy of parameters
/// and moments, which stays hidden until the step commits; then the copies change places. So a step stays a
/// transaction, though its update is over before the vote.
///
/// The copies are two flat tensors of each, laid out as the gradients are, in memory of the communicator. On one host
/// each rank updates 1 / world_size of the elements, pushes the parameters to the others, and writes the moments where
/// all ranks read them (Communicator::all_reduce_update, allocate_shared). The sharded update is that of Xu et al.,
/// "Automatic Cross-Replica Sharding of Weight Update in Data-Parallel Training" (2020). Here every rank can reach all
/// of the state, so that any rank may be lost.
///
/// A step never writes to the copy that the step before shows: no rank writes moments where another rank may read them.
/// All ranks write the same values. A rank votes in a step only after it has done its reads and writes of the step
/// before. And a rank that is cut off within a step has touched only the hidden copy.
///
/// Parameters and moments are the same tensors throughout; their memory changes with each commit (set_data). Compute's
/// thread, but for `reduce`, the reducer's: between `begin` and the end of the step's last bucket.
class EarlyUpdate {
 public:
  /// Moves parameters and moments, the values stay. Collective: `communicator` gives the memory; it must be idle.
  /// `parameters`: all of the model, each once, in layout order, f32. If allocate throws, so does this, and nothing has
  /// moved then.
  EarlyUpdate(const std::vector<at::Tensor>& parameters, const BucketPlan& plan, Optimizer& optimizer,
              Communicator& communicator);
  /// Moments shared with other ranks move to memory of this rank alone. Parameters stay in their memory.
  ~EarlyUpdate();
  EarlyUpdate(const EarlyUpdate&) = delete;
  EarlyUpdate& operator=(const EarlyUpdate&) = delete;

  /// The update of the step under way, at this rate of the schedule. Throws Error(usage) for a parameter that can't
  /// have such an update.
  void begin(double lr);
  bool begun() const noexcept { return begun_; }
  /// Turns the bucket's gradients into the update of its elements. Throws the communicator's errors.
  void reduce(const BucketView& bucket, Communicator& communicator) const;
  /// Shows the step's values of the parameters that are `used` anywhere, by parameter; the others stay. All buckets
  /// must be reduced.
  void commit(const std::vector<bool>& used);
  /// The step is given up.
  void drop() noexcept { begun_ = false; }
  /// A step that was not begun: the update of the gradients that parameters have now, with the bits of an early one.
  /// Local.
  void update(double lr);

  std::int64_t bytes() const noexcept;  ///< of both copies, this rank's part of the shared memory

 private:
  struct Slot {
    std::size_t parameter = 0, bucket = 0;  // in layout order, in the plan
    std::int64_t begin = 0, end = 0;        // of the bucket
    std::size_t element = 0;                // in elements_
    std::array<UpdatedState, 2> views;      // of the copies, in the parameter's sizes and strides
  };

  void allocate(std::int64_t numel, Communicator& communicator);
  void place_slots(const std::vector<at::Tensor>& parameters, const BucketPlan& plan);
  void take_in();
  void check_parameters() const;
  void prepare();
  void make_runs(double lr);
  void show(const std::vector<bool>& updated);  // by slot

  std::vector<ElementState> elements_;
  std::array<UpdatedState, 2> copies_;
  int sharers_ = 1;          // ranks that have the moments in common
  std::vector<Slot> slots_;  // in order of their offsets, one for each tensor of both model and optimizer
  std::array<std::vector<ReducedUpdate>, 2> updates_;  // by the copy that is read, by bucket
  int live_ = 0;
  std::atomic<bool> begun_ = false;  // the reducer may still look when an interrupted step is dropped
};

/// Averages a bucket, or makes its part of the update if the step has begun one.
class EarlyUpdateHook final : public CommHook {
 public:
  void reduce(BucketView& bucket, Communicator& communicator) override;
  /// Compute's thread, while the reducer has nothing to do.
  void set(std::shared_ptr<const EarlyUpdate> update) { update_ = std::move(update); }

 private:
  std::shared_ptr<const EarlyUpdate> update_;
};

}  // namespace troupe
