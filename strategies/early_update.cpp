#include "strategies/early_update.hpp"

#include <algorithm>
#include <map>
#include <utility>

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
  if (!why.empty()) throw Error(ErrorCode::usage, "early_update", why, "use the framework's sgd or adamw, or leave early_update out");
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
  std::map<const c10::TensorImpl*, std::size_t> last;  // of a tied parameter's names the last has the hook, and so the gradient
  for (std::size_t i = 0; i < parameters_.size(); ++i) last[parameters_[i].unsafeGetTensorImpl()] = i;
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    const auto& planned = plan.buckets[b].slots;
    for (std::size_t s = 0; s < planned.size(); ++s) {
      const auto parameter = static_cast<std::size_t>(planned[s].parameter);
      const auto* tensor = parameters_[parameter].unsafeGetTensorImpl();
      if (last[tensor] != parameter) continue;
      const auto end = s + 1 < planned.size() ? planned[s + 1].offset : plan.buckets[b].end;
      Slot slot{parameter, b, planned[s].offset, planned[s].numel, end - planned[s].offset, std::nullopt};
      const auto found = std::find_if(elements_.begin(), elements_.end(),
                                      [&](const auto& element) { return element.parameter.unsafeGetTensorImpl() == tensor; });
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
  if (tensor.numel() == 0 || tensor.const_data_ptr() == flat.const_data_ptr<float>() + slot.offset) return;
  const auto place = view(flat, slot, tensor);
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
  laid_out_ = true;
}

void EarlyUpdate::check_parameters() const {
  const auto refuse = [](const std::string& name, const char* why) {
    throw Error(ErrorCode::usage, "early_update", "parameter " + name + " " + why,
                "leave early_update out, or make a new model and optimizer");
  };
  std::vector<bool> placed(elements_.size(), false);
  for (const auto& slot : slots_) {
    if (!slot.element) continue;
    placed[*slot.element] = true;
    const auto& [name, parameter, first, second, step, rule] = elements_[*slot.element];
    if (parameter.scalar_type() != at::kFloat || parameter.numel() != slot.numel ||
        (first.defined() && (parameter.sizes() != first.sizes() || parameter.strides() != first.strides())))
      refuse(name, "has got another shape, dtype or strides since the training began");
  }
  for (std::size_t e = 0; e < elements_.size(); ++e) {
    if (!placed[e] && elements_[e].parameter.requires_grad())
      refuse(elements_[e].name, "is in the optimizer, but was not in the model, or frozen, when that was distributed");
  }
}

bool EarlyUpdate::begin(double lr) {
  torch::NoGradGuard no_grad;
  check_parameters();
  if (std::exchange(laid_out_, false)) return false;
  move_to(live_);  // a program may have given a parameter other memory between two steps
  make_runs(lr);
  begun_ = true;
  return true;
}

void EarlyUpdate::make_runs(double lr) {
  runs_.assign(buckets_.size(), {});
  for (const auto& slot : slots_) {
    if (!slot.element || slot.padded == 0) continue;
    auto& runs = runs_[slot.bucket];
    const auto& element = elements_[*slot.element];
    const auto begin = slot.offset - buckets_[slot.bucket].begin;
    const auto rule = element.rule(lr, static_cast<double>(element.step.item<float>()) + 1);
    if (!runs.empty() && runs.back().end == begin && runs.back().rule == rule) {
      runs.back().end += slot.padded;
    } else {
      runs.push_back({begin, begin + slot.padded, rule});
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
