#include "strategies/early_update.hpp"

#include <algorithm>

namespace troupe {
namespace {

constexpr std::int64_t kCacheBytes = std::int64_t{4} << 20;  // what a rank may hope to find in its caches in the next step

std::int64_t bytes_of(const UpdatedState& state) {
  std::int64_t bytes = 0;
  for (const auto* tensor : {&state.parameter, &state.first, &state.second}) {
    if (tensor->defined()) bytes += static_cast<std::int64_t>(tensor->nbytes());
  }
  return bytes;
}

at::Tensor part(const at::Tensor& flat, const Bucket& bucket) {
  return flat.defined() ? flat.narrow(0, bucket.begin, bucket.numel()) : at::Tensor();
}

UpdatedState part(const UpdatedState& state, const Bucket& bucket) {
  return {part(state.parameter, bucket), part(state.first, bucket), part(state.second, bucket)};
}

void copy_elements(const at::Tensor& from, const at::Tensor& to, std::int64_t offset, std::int64_t numel) {
  if (from.defined()) to.narrow(0, offset, numel).copy_(from.narrow(0, offset, numel));
}

}  // namespace

EarlyUpdate::EarlyUpdate(const std::vector<at::Tensor>& parameters, const BucketPlan& plan, Optimizer& optimizer, Communicator& lane)
    : parameters_(parameters) {
  torch::NoGradGuard no_grad;
  std::string why;
  elements_ = optimizer.elements(why);
  const auto any = [&](auto moment) {
    return std::any_of(elements_.begin(), elements_.end(), [&](const auto& element) { return (element.*moment).defined(); });
  };
  const auto numel = plan.flats.empty() ? 0 : plan.flats.front().numel;
  for (auto& copy : copies_) {
    copy.parameter = lane.allocate(numel, at::kFloat);
    if (any(&ElementState::first)) copy.first = lane.allocate(numel, at::kFloat);
    if (any(&ElementState::second)) copy.second = lane.allocate(numel, at::kFloat);
  }
  place_slots(plan);
  move_to(0);
}

void EarlyUpdate::place_slots(const BucketPlan& plan) {
  slots_.clear();
  buckets_ = plan.buckets;
  for (const auto& bucket : plan.buckets) {
    for (std::size_t s = 0; s < bucket.slots.size(); ++s) {
      const auto& planned = bucket.slots[s];
      const auto end = s + 1 < bucket.slots.size() ? bucket.slots[s + 1].offset : bucket.end;
      Slot slot{static_cast<std::size_t>(planned.parameter), planned.offset, planned.numel, end - planned.offset, std::nullopt};
      const auto* parameter = parameters_[slot.parameter].unsafeGetTensorImpl();
      const auto found = std::find_if(elements_.begin(), elements_.end(),
                                      [&](const auto& element) { return element.parameter.unsafeGetTensorImpl() == parameter; });
      if (found != elements_.end()) slot.element = static_cast<std::size_t>(found - elements_.begin());
      slots_.push_back(slot);
    }
  }
}

at::Tensor EarlyUpdate::view(const at::Tensor& flat, const Slot& slot, const at::Tensor& like) const {
  const auto place = flat.narrow(0, slot.offset, slot.numel);
  return like.is_non_overlapping_and_dense() ? place.as_strided(like.sizes(), like.strides()) : place.view(like.sizes());
}

// What the tensor holds now is in the copy then, and the tensor a view of that. Where it is one already, nothing moves.
void EarlyUpdate::take_in(at::Tensor& tensor, const at::Tensor& flat, const Slot& slot) {
  const auto place = view(flat, slot, tensor);
  if (tensor.const_data_ptr() == place.const_data_ptr()) return;
  place.copy_(tensor);
  tensor.set_data(place);
}

void EarlyUpdate::move_to(int copy) {
  auto& state = copies_[static_cast<std::size_t>(copy)];
  for (const auto& slot : slots_) {
    take_in(parameters_[slot.parameter], state.parameter, slot);
    if (!slot.element) continue;
    auto& element = elements_[*slot.element];
    if (element.first.defined()) take_in(element.first, state.first, slot);
    if (element.second.defined()) take_in(element.second, state.second, slot);
  }
  live_ = copy;
}

void EarlyUpdate::lay_out(const BucketPlan& plan) {
  torch::NoGradGuard no_grad;
  place_slots(plan);
  move_to(1 - live_);
}

void EarlyUpdate::begin(double lr) {
  torch::NoGradGuard no_grad;
  for (const auto& slot : slots_) {
    const auto& parameter = parameters_[slot.parameter];
    if (parameter.numel() == slot.numel && parameter.scalar_type() == at::kFloat) continue;
    throw Error(ErrorCode::usage, "early_update", "a parameter has got another shape or dtype since the training began",
                "leave early_update out, or make a new model");
  }
  move_to(live_);  // a program may have given a parameter other memory between two steps
  make_runs(lr);
  begun_ = true;
}

void EarlyUpdate::make_runs(double lr) {
  runs_.assign(buckets_.size(), {});
  std::size_t next = 0;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    auto& runs = runs_[b];
    for (std::size_t s = 0; s < buckets_[b].slots.size(); ++s) {
      const auto& slot = slots_[next++];
      if (!slot.element || slot.padded == 0) continue;
      const auto& element = elements_[*slot.element];
      const auto begin = slot.offset - buckets_[b].begin;
      const auto rule = element.rule(lr, static_cast<double>(element.step.item<float>()) + 1);
      if (!runs.empty() && runs.back().end == begin && runs.back().rule == rule) {
        runs.back().end += slot.padded;
      } else {
        runs.push_back({begin, begin + slot.padded, rule});
      }
    }
  }
}

void EarlyUpdate::reduce(const BucketView& bucket, Communicator& lane) const {
  const auto index = static_cast<std::size_t>(bucket.index);
  const auto& planned = buckets_[index];
  const auto live = static_cast<std::size_t>(live_);
  ReducedUpdate update{part(copies_[live], planned), part(copies_[1 - live], planned), runs_[index], bytes_of(copies_[live]) > kCacheBytes};
  lane.all_reduce_update(bucket.flat, update, bucket.label + ", update");
}

void EarlyUpdate::commit(const std::vector<bool>& used) {
  torch::NoGradGuard no_grad;
  const auto& now = copies_[static_cast<std::size_t>(live_)];
  const auto& next = copies_[static_cast<std::size_t>(1 - live_)];
  for (const auto& slot : slots_) {
    auto& parameter = parameters_[slot.parameter];
    const bool updated = slot.element && used[slot.parameter];
    if (!updated) {  // the bucket may hold zeros for it, which would still decay it
      copy_elements(now.parameter, next.parameter, slot.offset, slot.numel);
      copy_elements(now.first, next.first, slot.offset, slot.numel);
      copy_elements(now.second, next.second, slot.offset, slot.numel);
    }
    parameter.set_data(view(next.parameter, slot, parameter));
    if (!slot.element) continue;
    auto& element = elements_[*slot.element];
    if (element.first.defined()) element.first.set_data(view(next.first, slot, element.first));
    if (element.second.defined()) element.second.set_data(view(next.second, slot, element.second));
    if (updated) *element.step.mutable_data_ptr<float>() += 1;
  }
  live_ = 1 - live_;
  begun_ = false;
}

std::int64_t EarlyUpdate::bytes() const noexcept { return bytes_of(copies_[0]) + bytes_of(copies_[1]); }

void EarlyUpdateHook::reduce(BucketView& bucket, Communicator& communicator) {
  if (update_ && update_->begun()) {
    update_->reduce(bucket, communicator);
  } else {
    communicator.all_reduce(bucket.flat, ReduceOp::avg, bucket.label);
  }
}

}  // namespace troupe
