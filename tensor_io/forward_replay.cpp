#include "tensor_io/forward_replay.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <cstring>

namespace troupe {
namespace {

at::Tensor generator_state() {
  auto generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(const at::Tensor& state) {
  auto generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

// Bytes, since NaN differs from itself.
bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  if (!a.is_contiguous() || !b.is_contiguous()) return at::equal(a, b);
  return a.nbytes() == b.nbytes() && (a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

}  // namespace

ForwardReplay::Recording::Recording(ForwardReplay& replay, torch::nn::Module& module)
    : replay_(replay), module_(module), draws_(replay.draws_) {
  const at::NoGradGuard no_grad;
  replay_.generator_ = generator_state();
  for (const auto& buffer : module.buffers()) replay_.buffers_.emplace_back(buffer, buffer.clone());
  replay_.autocast_ = at::autocast::is_autocast_enabled(at::kCPU);
  replay_.dtype_ = at::autocast::get_autocast_dtype(at::kCPU);
  replay_.cache_ = at::autocast::is_autocast_cache_enabled();
}

ForwardReplay::Recording::~Recording() {
  const at::NoGradGuard no_grad;
  if (same_bytes(replay_.generator_, generator_state())) replay_.generator_ = at::Tensor();
  std::erase_if(replay_.buffers_, [](const auto& buffer) { return same_bytes(buffer.first, buffer.second); });
}

ForwardReplay::Replaying::Replaying(ForwardReplay& replay)
    : replay_(replay),
      draws_(replay.draws_),
      autocast_before_(at::autocast::is_autocast_enabled(at::kCPU)),
      cache_before_(at::autocast::is_autocast_cache_enabled()),
      dtype_before_(at::autocast::get_autocast_dtype(at::kCPU)) {
  const at::NoGradGuard no_grad;
  if (replay_.generator_.defined()) {
    generator_before_ = generator_state();
    set_generator_state(replay_.generator_);
  }
  for (const auto& [live, before] : replay_.buffers_) {
    buffers_now_.push_back(live.clone());
    live.variable_data().copy_(before);  // behind autograd's back: nothing of the graph depends on it
  }
  at::autocast::set_autocast_enabled(at::kCPU, replay_.autocast_);
  at::autocast::set_autocast_dtype(at::kCPU, replay_.dtype_);
  at::autocast::set_autocast_cache_enabled(replay_.cache_);
  at::autocast::increment_nesting();
}

ForwardReplay::Replaying::~Replaying() {
  const at::NoGradGuard no_grad;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_cache_enabled(cache_before_);
  at::autocast::set_autocast_dtype(at::kCPU, dtype_before_);
  at::autocast::set_autocast_enabled(at::kCPU, autocast_before_);
  for (std::size_t i = 0; i < buffers_now_.size(); ++i) replay_.buffers_[i].first.variable_data().copy_(buffers_now_[i]);
  if (generator_before_.defined()) set_generator_state(generator_before_);
}

}  // namespace troupe
