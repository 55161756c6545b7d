#include "strategies/replicated/early_update.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "strategies/replicated/gradient_buckets.hpp"
#include "tensor_io/optimizer/element_update.hpp"

namespace troupe {
namespace {

constexpr std::int64_t kCacheBytes = std::int64_t{4}
                                     << 20;  // what a rank may hope to find in its caches in the next step

std::int64_t bytes_of(const UpdatedState& state) {
  std::int64_t bytes = 0;
  for (const auto* tensor : {&state.parameter, &state.first, &state.second}) {
    if (tensor->defined()) bytes += static_cast<std::int64_t>(tensor->nbytes());
  }
  return bytes;
}

UpdatedState part(const UpdatedState& state, std::int64_t begin, std::int64_t end) {
  return state.map([&](const at::Tensor& flat) { return flat.slice(0, begin, end); });
}

}  // namespace

EarlyUpdate::EarlyUpdate(const std::vector<at::Tensor>& parameters, const BucketPlan& plan, Optimizer& optimizer,
                         Communicator& communicator) {
  torch::NoGradGuard no_grad;
  std::string why;
  elements_ = optimizer.elements(why);
  if (!why.empty())
    throw Error(ErrorCode::usage, "early_update", why, "use the framework's sgd or adamw, or leave early_update out");
  allocate(plan.flats.empty() ? 0 : plan.flats.front().numel, communicator);
  place_slots(parameters, plan);
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

void EarlyUpdate::allocate(std::int64_t numel, Communicator& communicator) {
  const auto any = [&](auto moment) {
    return std::any_of(elements_.begin(), elements_.end(),
                       [&](const auto& element) { return (element.*moment).defined(); });
  };
  const auto of_moments = [&] {
    auto memory = communicator.allocate_shared(numel, at::kFloat);
    if (!memory.defined()) return communicator.allocate(numel, at::kFloat);
    sharers_ = communicator.world_size();
    return memory;
  };
  for (auto& copy : copies_) {
    copy.parameter = communicator.allocate(numel, at::kFloat);
    if (any(&ElementState::first)) copy.first = of_moments();
    if (any(&ElementState::second)) copy.second = of_moments();
  }
}

void EarlyUpdate::place_slots(const std::vector<at::Tensor>& parameters, const BucketPlan& plan) {
  std::map<const c10::TensorImpl*, std::size_t> element_of;
  for (std::size_t e = 0; e < elements_.size(); ++e)
    element_of.emplace(elements_[e].parameter.unsafeGetTensorImpl(), e);
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    const auto& bucket = plan.buckets[b];
    for (std::size_t s = 0; s < bucket.slots.size(); ++s) {
      const auto& planned = bucket.slots[s];
      const auto index = static_cast<std::size_t>(planned.parameter);
      const auto& parameter = parameters[index];
      const auto element = element_of.find(parameter.unsafeGetTensorImpl());
      if (element == element_of.end()) continue;
      const auto end = s + 1 < bucket.slots.size() ? bucket.slots[s + 1].offset : bucket.end;
      Slot slot{index, b, planned.offset - bucket.begin, end - bucket.begin, element->second, {}};
      for (std::size_t copy = 0; copy < 2; ++copy)
        slot.views[copy] =
            copies_[copy].map([&](const at::Tensor& flat) { return slot_view(flat, planned, parameter); });
      slots_.push_back(std::move(slot));
    }
    for (std::size_t copy = 0; copy < 2; ++copy) {
      updates_[copy].push_back({part(copies_[copy], bucket.begin, bucket.end),
                                part(copies_[1 - copy], bucket.begin, bucket.end),
                                {},
                                bytes_of(copies_[copy]) > kCacheBytes});
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
    auto& element = elements_[slot.element];
    take(element.parameter, shown.parameter);
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
    placed[slot.element] = true;
    const auto& element = elements_[slot.element];
    const auto& place = slot.views[live_].parameter;
    for (const auto* tensor : {&element.parameter, &element.first, &element.second}) {
      if (tensor->defined() && (tensor->scalar_type() != at::kFloat || tensor->sizes() != place.sizes() ||
                                tensor->strides() != place.strides()))
        refuse(element.name, "has changed its shape, dtype or strides since training began");
    }
  }
  for (std::size_t e = 0; e < elements_.size(); ++e) {
    if (!placed[e] && elements_[e].parameter.requires_grad())
      refuse(elements_[e].name,
             "is in the optimizer, but was frozen or not in the model when the model was distributed");
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

void EarlyUpdate::make_runs(double lr) {
  auto& updates = updates_[live_];
  for (auto& update : updates) update.runs.clear();
  for (const auto& slot : slots_) {
    if (slot.begin == slot.end) continue;
    auto& runs = updates[slot.bucket].runs;
    const auto rule = elements_[slot.element].next_rule(lr);
    if (!runs.empty() && runs.back().end == slot.begin && runs.back().rule == rule) {
      runs.back().end = slot.end;
    } else {
      runs.push_back({slot.begin, slot.end, rule});
    }
  }
}

void EarlyUpdate::reduce(const BucketView& bucket, Communicator& communicator) const {
  communicator.all_reduce_update(bucket.flat, updates_[live_][static_cast<std::size_t>(bucket.index)],
                                 bucket.label + ", update");
}

void EarlyUpdate::update(double lr) {
  torch::NoGradGuard no_grad;
  prepare();
  std::vector<bool> updated;
  for (const auto& slot : slots_) {
    const auto& element = elements_[slot.element];
    const auto gradient = gradient_lines(element);
    updated.push_back(gradient.defined());
    if (!gradient.defined()) continue;
    const auto& bucket = updates_[live_][slot.bucket];
    update_element(element, gradient, lr, part(bucket.state, slot.begin, slot.end),
                   part(bucket.next, slot.begin, slot.end));
  }
  show(updated);
}

void EarlyUpdate::commit(const std::vector<bool>& used) {
  std::vector<bool> updated;
  for (const auto& slot : slots_) updated.push_back(used[slot.parameter]);
  show(updated);
}

void EarlyUpdate::show(const std::vector<bool>& updated) {
  torch::NoGradGuard no_grad;
  for (std::size_t s = 0; s < slots_.size(); ++s) {
    const auto &shown = slots_[s].views[live_], &next = slots_[s].views[1 - live_];
    if (!updated[s]) {  // the bucket may hold zeros for it, which would still decay it
      for (const auto& [from, to] :
           {std::pair(shown.parameter, next.parameter), {shown.first, next.first}, {shown.second, next.second}}) {
        if (from.defined()) to.copy_(from);
      }
    }
    auto& element = elements_[slots_[s].element];
    element.parameter.set_data(next.parameter);
    if (element.first.defined()) element.first.set_data(next.first);
    if (element.second.defined()) element.second.set_data(next.second);
    if (updated[s]) *element.step.mutable_data_ptr<float>() += 1;
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
