#include "strategies/early_update.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "tensor_io/element_update.hpp"

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

at::Tensor view(const at::Tensor& flat, const BucketSlot& slot, const at::Tensor& like) {
  if (!flat.defined()) return {};
  const auto place = flat.narrow(0, slot.offset, slot.numel);
  return like.is_non_overlapping_and_dense() ? place.as_strided(like.sizes(), like.strides()) : place.view(like.sizes());
}

}  // namespace

EarlyUpdate::EarlyUpdate(const std::vector<at::Tensor>& parameters, const BucketPlan& plan, Optimizer& optimizer, Communicator& lane)
    : parameters_(parameters) {
  torch::NoGradGuard no_grad;
  std::string why;
  elements_ = optimizer.elements(why);
  if (!why.empty()) throw Error(ErrorCode::usage, "early_update", why, "use the framework's sgd or adamw, or leave early_update out");
  allocate(plan.flats.empty() ? 0 : plan.flats.front().numel, lane);
  place_slots(plan);
  take_in();
}

// The memory is the other ranks', too, and whoever keeps the moments may write them.
EarlyUpdate::~EarlyUpdate() {
  if (sharers_ == 1) return;
  torch::NoGradGuard no_grad;
  for (auto& element : elements_) {
    for (auto* moment : {&element.first, &element.second}) {
      if (moment->defined() && moment->use_count() > 1) moment->set_data(moment->clone());
    }
  }
}

void EarlyUpdate::allocate(std::int64_t numel, Communicator& lane) {
  const auto any = [&](auto moment) {
    return std::any_of(elements_.begin(), elements_.end(), [&](const auto& element) { return (element.*moment).defined(); });
  };
  const auto of_moments = [&] {
    auto memory = lane.allocate_shared(numel, at::kFloat);
    if (!memory.defined()) return lane.allocate(numel, at::kFloat);
    sharers_ = lane.world_size();
    return memory;
  };
  for (auto& copy : copies_) {
    copy.parameter = lane.allocate(numel, at::kFloat);
    if (any(&ElementState::first)) copy.first = of_moments();
    if (any(&ElementState::second)) copy.second = of_moments();
  }
}

std::optional<std::size_t> EarlyUpdate::element_of(const at::Tensor& parameter) const {
  for (std::size_t e = 0; e < elements_.size(); ++e) {
    if (elements_[e].parameter.unsafeGetTensorImpl() == parameter.unsafeGetTensorImpl()) return e;
  }
  return std::nullopt;
}

void EarlyUpdate::place_slots(const BucketPlan& plan) {
  std::map<const c10::TensorImpl*, std::size_t> last;  // of a tied parameter's names the last has the hook, and so the gradient
  for (std::size_t i = 0; i < parameters_.size(); ++i) last[parameters_[i].unsafeGetTensorImpl()] = i;
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    const auto& bucket = plan.buckets[b];
    for (std::size_t s = 0; s < bucket.slots.size(); ++s) {
      const auto& planned = bucket.slots[s];
      const auto index = static_cast<std::size_t>(planned.parameter);
      const auto& parameter = parameters_[index];
      if (last[parameter.unsafeGetTensorImpl()] != index) continue;
      const auto end = s + 1 < bucket.slots.size() ? bucket.slots[s + 1].offset : bucket.end;
      Slot slot{index, b, planned.offset - bucket.begin, end - bucket.begin, element_of(parameter), {}};
      for (std::size_t copy = 0; copy < 2; ++copy) {
        slot.views[copy] = {view(copies_[copy].parameter, planned, parameter), view(copies_[copy].first, planned, parameter),
                            view(copies_[copy].second, planned, parameter)};
      }
      slots_.push_back(std::move(slot));
    }
    for (std::size_t copy = 0; copy < 2; ++copy) {
      updates_[copy].push_back({part(copies_[copy], bucket), part(copies_[1 - copy], bucket), {}, bytes_of(copies_[copy]) > kCacheBytes});
    }
  }
}

// Parameters and moments that lie elsewhere: their values come into the copy that is shown, and they are views of it.
void EarlyUpdate::take_in() {
  const auto take = [](at::Tensor& tensor, const at::Tensor& place) {
    if (tensor.numel() == 0 || tensor.const_data_ptr() == place.const_data_ptr()) return;
    place.copy_(tensor);
    tensor.set_data(place);
  };
  for (const auto& slot : slots_) {
    const auto& shown = slot.views[live_];
    take(parameters_[slot.parameter], shown.parameter);
    if (!slot.element) continue;
    auto& element = elements_[*slot.element];
    if (element.first.defined()) take(element.first, shown.first);
    if (element.second.defined()) take(element.second, shown.second);
  }
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
    const auto& element = elements_[*slot.element];
    const auto& place = slot.views[live_].parameter;
    for (const auto* tensor : {&element.parameter, &element.first, &element.second}) {
      if (tensor->defined() &&
          (tensor->scalar_type() != at::kFloat || tensor->sizes() != place.sizes() || tensor->strides() != place.strides()))
        refuse(element.name, "has got another shape, dtype or strides since the training began");
    }
  }
  for (std::size_t e = 0; e < elements_.size(); ++e) {
    if (!placed[e] && elements_[e].parameter.requires_grad())
      refuse(elements_[e].name, "is in the optimizer, but was not in the model, or frozen, when that was distributed");
  }
}

// A program may have given a parameter other memory between two steps.
void EarlyUpdate::prepare() {
  check_parameters();
  take_in();
}

void EarlyUpdate::begin(double lr) {
  torch::NoGradGuard no_grad;
  prepare();
  make_runs(lr);
  begun_ = true;
}

UpdateRule EarlyUpdate::rule_of(const Slot& slot, double lr) const {
  const auto& element = elements_[*slot.element];
  return element.rule(lr, static_cast<double>(*element.step.const_data_ptr<float>()) + 1);
}

void EarlyUpdate::make_runs(double lr) {
  auto& updates = updates_[live_];
  for (auto& update : updates) update.runs.clear();
  for (const auto& slot : slots_) {
    if (!slot.element || slot.begin == slot.end) continue;
    auto& runs = updates[slot.bucket].runs;
    const auto rule = rule_of(slot, lr);
    if (!runs.empty() && runs.back().end == slot.begin && runs.back().rule == rule) {
      runs.back().end = slot.end;
    } else {
      runs.push_back({slot.begin, slot.end, rule});
    }
  }
}

void EarlyUpdate::reduce(const BucketView& bucket, Communicator& lane) const {
  lane.all_reduce_update(bucket.flat, updates_[live_][static_cast<std::size_t>(bucket.index)], bucket.label + ", update");
}

void EarlyUpdate::update(double lr) {
  torch::NoGradGuard no_grad;
  prepare();
  std::vector<bool> used(parameters_.size(), false);
  for (const auto& slot : slots_) {
    if (!slot.element || slot.begin == slot.end) continue;
    const auto gradient = gradient_lines(elements_[*slot.element]);
    if (!gradient.defined()) continue;
    used[slot.parameter] = true;
    const auto& bucket = updates_[live_][slot.bucket];
    const auto of_slot = [&](const UpdatedState& state) {
      const auto cut = [&](const at::Tensor& flat) { return flat.defined() ? flat.slice(0, slot.begin, slot.end) : flat; };
      return UpdatedState{cut(state.parameter), cut(state.first), cut(state.second)};
    };
    const ReducedUpdate update{of_slot(bucket.state), of_slot(bucket.next), {{0, gradient.numel(), rule_of(slot, lr)}}, false};
    apply_update(update, {gradient.const_data_ptr<float>()}, 1, copies_here(update.next), 0, gradient.numel());
  }
  commit(used);
}

void EarlyUpdate::commit(const std::vector<bool>& used) {
  torch::NoGradGuard no_grad;
  for (const auto& slot : slots_) {
    const auto &shown = slot.views[live_], &next = slot.views[1 - live_];
    const bool updated = slot.element && used[slot.parameter];
    if (!updated) {  // the bucket may hold zeros for it, which would still decay it
      for (const auto& [from, to] : {std::pair(shown.parameter, next.parameter), {shown.first, next.first}, {shown.second, next.second}}) {
        if (from.defined()) to.copy_(from);
      }
    }
    parameters_[slot.parameter].set_data(next.parameter);
    if (!slot.element) continue;
    auto& element = elements_[*slot.element];
    if (element.first.defined()) element.first.set_data(next.first);
    if (element.second.defined()) element.second.set_data(next.second);
    if (updated) *element.step.mutable_data_ptr<float>() += 1;
  }
  live_ = 1 - live_;
  begun_ = false;
}

std::int64_t EarlyUpdate::bytes() const noexcept {
  const auto parameters = static_cast<std::int64_t>(copies_[0].parameter.nbytes());
  return 2 * (parameters + (bytes_of(copies_[0]) - parameters) / sharers_);
}

void EarlyUpdateHook::reduce(BucketView& bucket, Communicator& communicator) {
  if (update_ && update_->begun()) {
    update_->reduce(bucket, communicator);
  } else {
    communicator.all_reduce(bucket.flat, ReduceOp::avg, bucket.label);
  }
}

}  // namespace troupe
