#include "tensor_io/layers/forward_replay.hpp"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <cstring>

namespace troupe {
namespace {

// A state is a tensor of the CPU, whatever the generator's device: nothing waits for that.
at::Tensor state_of(at::Generator generator) {
  std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator generator, const at::Tensor& state) {
  std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

// Bytes, since NaN differs from itself.
bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  if (!a.is_contiguous() || !b.is_contiguous()) return at::equal(a, b);
  return a.nbytes() == b.nbytes() &&
         (a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<std::uint32_t>(tensor._version());
}

}  // namespace

ForwardReplay::Autocast ForwardReplay::autocast_of(c10::DeviceType device) {
  return {device, at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
}

void ForwardReplay::set_autocast(const Autocast& autocast) {
  at::autocast::set_autocast_enabled(autocast.device, autocast.enabled);
  at::autocast::set_autocast_dtype(autocast.device, autocast.dtype);
}

bool ForwardReplay::may_have_changed(const Buffer& buffer) {
  if (buffer.live.is_cpu()) return !same_bytes(buffer.live, buffer.before);
  return buffer.live.dim() <= 1 || buffer.live.is_inference() || version_of(buffer.live) != buffer.version;
}

ForwardReplay::Recording::Recording(ForwardReplay& replay, torch::nn::Module& module, c10::Device device)
    : replay_(replay), draws_(replay.draws_) {
  const at::NoGradGuard no_grad;
  std::vector<c10::Device> devices = {at::kCPU};
  if (!device.is_cpu()) devices.push_back(device);
  for (const auto& one : devices) {
    const auto& generator = at::globalContext().defaultGenerator(one);
    replay_.generators_.emplace_back(generator, state_of(generator));
    replay_.autocast_.push_back(autocast_of(one.type()));
  }
  for (const auto& buffer : module.buffers()) replay_.buffers_.push_back({buffer, buffer.clone(), version_of(buffer)});
  replay_.cache_ = at::autocast::is_autocast_cache_enabled();
}

ForwardReplay::Recording::~Recording() {
  const at::NoGradGuard no_grad;
  std::erase_if(replay_.generators_,
                [](const auto& generator) { return same_bytes(generator.second, state_of(generator.first)); });
  std::erase_if(replay_.buffers_, [](const auto& buffer) { return !may_have_changed(buffer); });
}

ForwardReplay::Replaying::Replaying(ForwardReplay& replay)
    : replay_(replay), draws_(replay.draws_), cache_before_(at::autocast::is_autocast_cache_enabled()) {
  const at::NoGradGuard no_grad;
  for (const auto& [generator, state] : replay_.generators_) {
    generators_before_.emplace_back(generator, state_of(generator));
    set_state(generator, state);
  }
  for (const auto& buffer : replay_.buffers_) {
    buffers_now_.push_back(buffer.live.clone());
    buffer.live.variable_data().copy_(buffer.before);  // behind autograd's back: nothing of the graph depends on it
  }
  for (const auto& autocast : replay_.autocast_) {
    autocast_before_.push_back(autocast_of(autocast.device));
    set_autocast(autocast);
  }
  at::autocast::set_autocast_cache_enabled(replay_.cache_);
  at::autocast::increment_nesting();
}

ForwardReplay::Replaying::~Replaying() {
  const at::NoGradGuard no_grad;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_cache_enabled(cache_before_);
  for (const auto& autocast : autocast_before_) set_autocast(autocast);
  for (std::size_t i = 0; i < buffers_now_.size(); ++i) replay_.buffers_[i].live.variable_data().copy_(buffers_now_[i]);
  for (const auto& [generator, state] : generators_before_) set_state(generator, state);
}

}  // namespace troupe
