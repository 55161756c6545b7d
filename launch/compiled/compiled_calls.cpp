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
  bool masks = false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (dropouts[i] != nullptr) {
      masks = true;
    } else if (!inputs[i].defined()) {
      inputs[i] = given.at(next++);
    }
  }
  if (masks) {
    const auto sizes = graph->sizes_of(inputs, names);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (dropouts[i] == nullptr) continue;
      inputs[i] = dropouts[i]->draw_mask(graph->shape(i, sizes), at::kCPU);
      if (drawn_masks != nullptr) drawn_masks->push_back(inputs[i]);
    }
  }
  // A forward for the sake of backward has been counted before.
  return graph->run(std::move(inputs), names, /*keep_written=*/BlockCalls::is_recomputing());
}

}  // namespace troupe
