#pragma once
#include <torch/csrc/autograd/function_hook.h>
#include <torch/torch.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/rank/comm_hook.hpp"
#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/layout/bucket_plan.hpp"

namespace troupe {

/// The slot's part of a flat buffer with the sizes of `parameter`, and its strides if these leave no holes.
at::Tensor slot_view(const at::Tensor& flat, const BucketSlot& slot, const at::Tensor& parameter);

/// Autograd has added to the `.grad` of the owner's parameter with that index. The hook may outlive the owner.
template <class Owner>
class GradientHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  GradientHook(std::weak_ptr<Owner*> owner, std::size_t index) : owner_(std::move(owner)), index_(index) {}
  void operator()(const torch::autograd::Variable&) override {
    if (const auto owner = owner_.lock()) (*owner)->arrived(index_);
  }

 private:
  std::weak_ptr<Owner*> owner_;
  std::size_t index_;
};

/// Gradients as views of flat buckets, and the hooks that fill them.
///
/// LibTorch makes a new tensor for each gradient (zero_grad drops the old one). A post-accumulate hook per parameter
/// copies it into the bucket in one pass that also looks for NaN and infinity. It points `.grad` back at the bucket, so
/// that a second micro-batch adds in place. The copy is the only one before the wire.
///
/// On a device the hook checks nothing, since the host would have to wait. Autograd's tensors are kept until the bucket
/// is whole, and then copied by one kernel. Whether all is finite is checked once, on the reduced buckets
/// (device_checks).
///
/// Compute's thread, but for the hooks, which may run on a thread of autograd. They touch only their parameter's entry,
/// the atomic count of its bucket and, since a device has one autograd thread, the order of arrival.
class GradientBuckets {
 public:
  using BucketFull = std::function<void(std::int32_t bucket)>;

  /// `parameters`: all of the model, frozen ones too, in layout order; `shape` says which of them have a place.
  /// `communicator` gives memory that its collectives use without staging.
  GradientBuckets(const std::vector<std::pair<std::string, at::Tensor>>& parameters, std::vector<ParameterLayout> shape,
                  Communicator& communicator, std::int64_t cap_bytes, std::int64_t first_cap_bytes, BucketFull full);
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  /// Drops the gradients of the step before.
  void begin_step();
  void begin_backward(bool synchronise, double weight);
  /// If `synchronise` was set: parameters without a gradient count as zero, and every bucket is full now.
  void end_backward();

  /// A device's backward, as far as the host keeps it.
  struct BackwardTrail {
    std::vector<bool> seen;             ///< by parameter: had a gradient in this step so far
    std::vector<std::int32_t> arrived;  ///< of a synchronised one, in order
  };
  BackwardTrail trail() const;
  /// The same backward has run again, instead of autograd and end_backward.
  void follow(const BackwardTrail& trail);

  const BucketPlan& plan() const noexcept { return plan_; }
  /// A new number whenever this process lays out buckets, and if parameters lie elsewhere or others require a
  /// gradient.
  std::uint64_t captured_layout_version() const;
  /// Of the parameters that had a gradient in this step so far.
  std::uint64_t seen_hash() const;
  std::vector<ParameterLayout> layout() const;  ///< as it is now: requires_grad may have changed
  /// Parameters in the order in which their gradients came in the last synchronised backward.
  std::vector<std::int32_t> arrival_order() const { return arrival_; }
  /// New buckets in this order, in the same memory. Undefines all gradients.
  void rebuild(const std::vector<std::int32_t>& order);
  std::shared_ptr<std::vector<BucketView>> bucket_views() const;

  std::vector<bool> used() const;  ///< had a gradient in this step, by parameter
  std::int32_t not_finite_parameter() const noexcept { return not_finite_; }  ///< first one of this step, or -1
  /// Parameters used on any rank get their view as gradient, the others none.
  void set_gradients(const std::vector<bool>& used_anywhere);
  /// The reduced gradients that are defined, in layout order.
  std::vector<at::Tensor> gradients() const;
  const std::vector<at::Tensor>& flats() const noexcept { return flats_; }
  /// On a device, whose gradients are not checked as they come: (rows, 2) f64 there, sums of squares and numbers of
  /// elements that are not finite. Undefined if there are no rows, and on the CPU. Does not wait for the device.
  /// `of_flats`: such rows of all flats that are not in f64, if they are known.
  ///
  /// A row is a flat, or one gradient in f64. The order and the number of the buckets, which change during a job and
  /// after a resume, must not change the norm. So with f64 all flats are one row: the others stand where they stood,
  /// and are added up in the same order. Of shorter types the rounding to them hides the order of a sum in f64.
  at::Tensor device_checks(at::Tensor of_flats = {}) const;
  /// The first parameter whose gradient is not finite now, or -1. On a device it waits for each: only for diagnosis.
  std::int32_t find_not_finite() const;

 private:
  const std::vector<ParameterLayout> shape_;  // requires_grad: it has a place, though it may be frozen now
  struct Entry {
    std::string name;
    at::Tensor parameter;
    at::Tensor view;  // in the bucket, with the parameter's sizes and strides; undefined for a frozen one
    std::int32_t bucket = -1;
    bool seen = false;   // the view holds data of this step
    bool used = false;   // ... of a micro-batch that counts
    bool ready = false;  // counted in this backward
    at::Tensor source;   // on a device: autograd's own, to be packed with the rest of the bucket
  };
  friend class GradientHook<GradientBuckets>;

  void place();
  void arrived(std::size_t index);
  void arrived_on_device(Entry& entry, at::Tensor& grad);
  void pack_bucket(std::int32_t bucket);
  void mark_ready(std::size_t index);
  const at::Tensor& flat_of(at::ScalarType dtype) const;
  std::vector<at::Tensor> gradients_of_f64() const;  // (numel,) each, in layout order

  // Constant after construction.
  const std::int64_t cap_bytes_, first_cap_bytes_;
  bool on_device_ = false;
  BucketFull full_;
  std::vector<at::Tensor> flats_;            // one per dtype, memory of the communicator
  std::shared_ptr<GradientBuckets*> alive_;  // hooks outlive us on the parameters

  // Compute's thread between backwards, autograd's during one.
  BucketPlan plan_;
  std::uint64_t layout_number_ = 0;
  std::vector<Entry> entries_;
  std::vector<std::int32_t> arrival_;
  std::unique_ptr<std::atomic<std::int32_t>[]> pending_;
  bool synchronise_ = true;
  double weight_ = 1;
  std::int32_t not_finite_ = -1;
};

}  // namespace troupe
