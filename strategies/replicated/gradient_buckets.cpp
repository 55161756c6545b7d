#include "strategies/replicated/gradient_buckets.hpp"

#include <algorithm>
#include <iterator>

#include "tensor_io/base/mix_seed.hpp"
#include "tensor_io/device/device_kernels.hpp"
#include "tensor_io/kernels/pack.hpp"

namespace troupe {

at::Tensor slot_view(const at::Tensor& flat, const BucketSlot& slot, const at::Tensor& parameter) {
  const auto slice = flat.narrow(0, slot.offset, slot.numel);
  return parameter.is_non_overlapping_and_dense() ? slice.as_strided(parameter.sizes(), parameter.strides())
                                                  : slice.view(parameter.sizes());
}

GradientBuckets::GradientBuckets(const std::vector<std::pair<std::string, at::Tensor>>& parameters,
                                 std::vector<ParameterLayout> shape, Communicator& communicator, std::int64_t cap_bytes,
                                 std::int64_t first_cap_bytes, BucketFull full)
    : shape_(std::move(shape)),
      cap_bytes_(cap_bytes),
      first_cap_bytes_(first_cap_bytes),
      full_(std::move(full)),
      alive_(std::make_shared<GradientBuckets*>(this)) {
  for (const auto& [name, parameter] : parameters) {
    if (parameter.device() != communicator.device()) {
      throw Error(ErrorCode::usage, "parameter " + name,
                  "it is on " + parameter.device().str() + ", this rank trains on " + communicator.device().str(),
                  "let rank.distribute move the model; --device sets where to");
    }
    entries_.push_back({name, parameter, {}, -1, false, false, {}});
  }
  plan_ = plan_buckets(shape_, registration_order(shape_), cap_bytes_, first_cap_bytes_);
  on_device_ = !communicator.device().is_cpu();
  for (const auto& flat : plan_.flats) flats_.push_back(communicator.allocate(flat.numel, flat.dtype));
  place();
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (shape_[i].requires_grad) {
      torch::autograd::impl::set_post_acc_grad_hooks(entries_[i].parameter,
                                                     std::make_unique<GradientHook<GradientBuckets>>(alive_, i));
    }
  }
}

GradientBuckets::~GradientBuckets() {
  alive_.reset();
  for (auto& entry : entries_) {
    if (entry.view.defined()) torch::autograd::impl::set_post_acc_grad_hooks(entry.parameter, nullptr);
  }
}

const at::Tensor& GradientBuckets::flat_of(at::ScalarType dtype) const {
  for (std::size_t i = 0; i < plan_.flats.size(); ++i) {
    if (plan_.flats[i].dtype == dtype) return flats_[i];
  }
  throw Error(ErrorCode::internal, "gradient buckets", std::string("no flat buffer of ") + c10::toString(dtype));
}

void GradientBuckets::place() {
  static std::atomic<std::uint64_t> layouts{0};
  layout_number_ = ++layouts;
  pending_ = std::make_unique<std::atomic<std::int32_t>[]>(plan_.buckets.size());
  for (std::size_t b = 0; b < plan_.buckets.size(); ++b) {
    const auto& flat = flat_of(plan_.buckets[b].dtype);
    for (const auto& slot : plan_.buckets[b].slots) {
      auto& entry = entries_[static_cast<std::size_t>(slot.parameter)];
      entry.bucket = static_cast<std::int32_t>(b);
      entry.view = slot_view(flat, slot, entry.parameter);
    }
  }
}

std::vector<ParameterLayout> GradientBuckets::layout() const {
  std::vector<ParameterLayout> layout;
  for (const auto& entry : entries_) {
    layout.push_back(
        {entry.name, entry.parameter.sizes().vec(), entry.parameter.scalar_type(), entry.parameter.requires_grad()});
  }
  return layout;
}

std::shared_ptr<std::vector<BucketView>> GradientBuckets::bucket_views() const {
  auto views = std::make_shared<std::vector<BucketView>>();
  for (std::size_t b = 0; b < plan_.buckets.size(); ++b) {
    const auto& bucket = plan_.buckets[b];
    BucketView view;
    view.index = static_cast<std::int32_t>(b);
    view.is_last = b + 1 == plan_.buckets.size();
    view.label = "bucket " + std::to_string(b);
    view.flat = flat_of(bucket.dtype).narrow(0, bucket.begin, bucket.numel());
    for (const auto& slot : bucket.slots) {
      view.gradients.push_back(entries_[static_cast<std::size_t>(slot.parameter)].view);
      view.names.push_back(entries_[static_cast<std::size_t>(slot.parameter)].name);
    }
    if (on_device_) {
      view.ready = std::make_shared<DeviceEvent>(view.flat.device());
      view.reduced = std::make_shared<DeviceEvent>(view.flat.device());
    }
    views->push_back(std::move(view));
  }
  return views;
}

void GradientBuckets::begin_step() {
  for (auto& entry : entries_) {
    entry.seen = entry.used = false;
    entry.source = at::Tensor();
    entry.parameter.mutable_grad() = at::Tensor();
  }
  not_finite_ = -1;
}

void GradientBuckets::begin_backward(bool synchronise, double weight) {
  synchronise_ = synchronise;
  weight_ = weight;
  if (weight == 0) {
    // What this backward adds must not reach the view, which may hold earlier micro-batches: 0 times infinity is NaN.
    for (auto& entry : entries_) entry.parameter.mutable_grad() = at::Tensor();
  }
  if (!synchronise) return;
  arrival_.clear();
  for (auto& entry : entries_) entry.ready = false;
  for (std::size_t b = 0; b < plan_.buckets.size(); ++b) {
    pending_[b].store(static_cast<std::int32_t>(plan_.buckets[b].slots.size()), std::memory_order_relaxed);
  }
}

void GradientBuckets::arrived(std::size_t index) {
  auto& entry = entries_[index];
  auto& grad = entry.parameter.mutable_grad();
  if (!grad.defined() || !entry.view.defined()) return;
  if (grad.is_sparse()) {
    throw Error(ErrorCode::usage, "gradient of " + entry.name, "it is sparse, buckets hold dense gradients",
                "construct the embedding with sparse(false)");
  }
  bool finite = true;
  if (on_device_) {
    arrived_on_device(entry, grad);
  } else if (weight_ == 0) {
    if (!entry.seen) entry.view.zero_();
    grad = entry.view;
  } else if (grad.data_ptr() == entry.view.data_ptr()) {  // a later micro-batch: autograd added in place
    if (synchronise_) finite = all_finite(entry.view);
  } else {
    finite = entry.seen ? add_and_check(entry.view, grad) : copy_and_check(entry.view, grad);
    grad = entry.view;
  }
  if (!finite && not_finite_ < 0) not_finite_ = static_cast<std::int32_t>(index);
  entry.seen = true;
  entry.used = entry.used || weight_ != 0;
  if (synchronise_ && !entry.ready) {
    arrival_.push_back(static_cast<std::int32_t>(index));
    mark_ready(index);
  }
}

void GradientBuckets::arrived_on_device(Entry& entry, at::Tensor& grad) {
  at::NoGradGuard no_grad;
  if (weight_ == 0) {
    if (!entry.seen) entry.view.zero_();
  } else if (grad.data_ptr() != entry.view.data_ptr()) {  // else a later micro-batch: autograd added in place
    if (!entry.seen && synchronise_) {
      entry.source = grad;
      return;  // its view comes with the bucket
    }
    entry.seen ? entry.view.add_(grad) : entry.view.copy_(grad);
  }
  grad = entry.view;
}

void GradientBuckets::pack_bucket(std::int32_t bucket) {
  at::NoGradGuard no_grad;
  const auto& planned = plan_.buckets[static_cast<std::size_t>(bucket)];
  const auto kernel_has = [&](const Entry& entry) {
    const auto dtype = entry.source.scalar_type();
    return (dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16) && dtype == planned.dtype &&
           entry.source.is_non_overlapping_and_dense() && entry.source.strides() == entry.view.strides();
  };
  std::vector<at::Tensor> sources;
  std::vector<std::int64_t> offsets;
  for (const auto& slot : planned.slots) {
    auto& entry = entries_[static_cast<std::size_t>(slot.parameter)];
    if (!entry.source.defined()) continue;
    if (kernel_has(entry)) {
      sources.push_back(entry.source.as_strided({slot.numel}, {1}));  // as it lies in memory: channels_last, too
      offsets.push_back(slot.offset);
    } else {
      entry.view.copy_(entry.source);
    }
    entry.source = at::Tensor();
    entry.parameter.mutable_grad() = entry.view;
  }
  pack(flat_of(planned.dtype), sources, offsets);
}

void GradientBuckets::mark_ready(std::size_t index) {
  auto& entry = entries_[index];
  entry.ready = true;
  if (pending_[static_cast<std::size_t>(entry.bucket)].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (on_device_) pack_bucket(entry.bucket);
  full_(entry.bucket);
}

std::vector<at::Tensor> GradientBuckets::gradients_of_f64() const {
  std::vector<at::Tensor> gradients;
  for (const auto& entry : entries_) {
    if (entry.view.defined() && entry.view.scalar_type() == at::kDouble)
      gradients.push_back(entry.view.as_strided({entry.view.numel()}, {1}));  // as it lies in memory
  }
  return gradients;
}

at::Tensor GradientBuckets::device_checks(at::Tensor of_flats) const {
  if (!on_device_) return {};
  if (!of_flats.defined()) {
    std::vector<at::Tensor> flats;
    std::copy_if(flats_.begin(), flats_.end(), std::back_inserter(flats),
                 [](const at::Tensor& flat) { return flat.scalar_type() != at::kDouble; });
    if (!flats.empty()) of_flats = check_each(flats, flats[0].device());
  }
  const auto gradients = gradients_of_f64();
  if (gradients.empty()) return of_flats;
  const auto of_f64 = check_each(gradients, gradients[0].device());
  return of_flats.defined() ? at::cat({of_flats.sum(0, /*keepdim=*/true), of_f64}) : of_f64;
}

std::int32_t GradientBuckets::find_not_finite() const {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].view.defined() && !entries_[i].view.isfinite().all().item<bool>())
      return static_cast<std::int32_t>(i);
  }
  return -1;
}

void GradientBuckets::end_backward() {
  if (!synchronise_) return;
  for (const auto& bucket : plan_.buckets) {
    for (const auto& slot : bucket.slots) {
      auto& entry = entries_[static_cast<std::size_t>(slot.parameter)];
      if (entry.ready) continue;
      if (!entry.seen) entry.view.zero_();
      mark_ready(static_cast<std::size_t>(slot.parameter));
    }
  }
}

void GradientBuckets::rebuild(const std::vector<std::int32_t>& order) {
  plan_ = plan_buckets(shape_, order, cap_bytes_, first_cap_bytes_);
  for (auto& entry : entries_) entry.parameter.mutable_grad() = at::Tensor();
  for (auto& flat : flats_)
    flat.zero_();  // the gaps between slots lie elsewhere now, and count in the norm of a whole bucket
  place();
}

std::uint64_t GradientBuckets::captured_layout_version() const {
  auto fit = layout_number_;
  for (const auto& entry : entries_) {
    const bool trained = entry.parameter.requires_grad();
    fit = mix_seed(fit, {trained, reinterpret_cast<std::uintptr_t>(entry.parameter.const_data_ptr())});
  }
  return fit;
}

std::uint64_t GradientBuckets::seen_hash() const {
  std::uint64_t hash = 0;
  for (const auto& entry : entries_) hash = mix_seed(hash, {entry.seen});
  return hash;
}

GradientBuckets::BackwardTrail GradientBuckets::trail() const {
  std::vector<bool> seen;
  for (const auto& entry : entries_) seen.push_back(entry.seen);
  return {std::move(seen), arrival_};
}

void GradientBuckets::follow(const BackwardTrail& trail) {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    auto& entry = entries_[i];
    entry.seen = entry.used = trail.seen[i];
    if (entry.seen) entry.parameter.mutable_grad() = entry.view;
  }
  if (synchronise_) arrival_ = trail.arrived;
}

std::vector<bool> GradientBuckets::used() const {
  std::vector<bool> used(entries_.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) used[i] = entries_[i].used;
  return used;
}

void GradientBuckets::set_gradients(const std::vector<bool>& used_anywhere) {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (!entries_[i].view.defined()) continue;
    entries_[i].parameter.mutable_grad() = used_anywhere[i] ? entries_[i].view : at::Tensor();
  }
}

std::vector<at::Tensor> GradientBuckets::gradients() const {
  std::vector<at::Tensor> gradients;
  for (const auto& entry : entries_) {
    if (entry.view.defined()) gradients.push_back(entry.view);
  }
  return gradients;
}

}  // namespace troupe
