#include "launch/compiled/compiled_calls.hpp"

#include <utility>

namespace troupe {
namespace {

thread_local std::vector<at::Tensor>* drawn_masks = nullptr;

}  // namespace

CompiledMasks::CompiledMasks(std::vector<at::Tensor>& masks) : HeldValue(drawn_masks, &masks) {}

std::vector<at::Tensor> CompiledCall::run(const std::vector<at::Tensor>& given) const {
  auto inputs = tensors;
  std::size_t next = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() && dropouts[i] == nullptr) inputs[i] = given.at(next++);
  }
  const auto draw = [this](std::size_t i, const std::vector<std::int64_t>& shape) {
    auto mask = dropouts[i]->draw_mask(shape, at::kCPU);
    if (drawn_masks != nullptr) drawn_masks->push_back(mask);
    return mask;
  };
  // A forward for the sake of backward has been counted before.
  return graph->run(std::move(inputs), names, /*keep_written=*/BlockCalls::is_recomputing(), draw);
}

}  // namespace troupe
