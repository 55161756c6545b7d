#include "tensor_io/optimizer/reduced_update.hpp"

#include <algorithm>

namespace troupe {
namespace {

const float* from(const at::Tensor& tensor, std::int64_t at) {
  return tensor.defined() ? tensor.const_data_ptr<float>() + at : nullptr;
}

std::vector<float*> place(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.mutable_data_ptr<float>()};
}

template <class T>
std::vector<T*> moved(std::vector<T*> pointers, std::int64_t by) {
  for (auto*& pointer : pointers) pointer += by;
  return pointers;
}

}  // namespace

UpdateCopies copies_here(const UpdatedState& next) {
  return {place(next.parameter), place(next.first), place(next.second)};
}

void apply_update(const ReducedUpdate& update, const std::vector<const float*>& gradients, int divisor,
                  const UpdateCopies& copies, std::int64_t begin, std::int64_t end) {
  for (const auto& run : update.runs) {
    const auto at = std::max(begin, run.begin), stop = std::min(end, run.end);
    if (at >= stop) continue;
    const auto inputs = moved(gradients, at);
    const auto parameter = moved(copies.parameter, at), first = moved(copies.first, at),
               second = moved(copies.second, at);
    UpdateTask task;
    task.rule = run.rule;
    task.gradients = inputs.data();
    task.gradient_count = static_cast<int>(inputs.size());
    task.divisor = divisor;
    task.parameter = from(update.state.parameter, at);
    task.first = from(update.state.first, at);
    task.second = from(update.state.second, at);
    task.parameter_copies = static_cast<int>(parameter.size());
    task.moment_copies = static_cast<int>(first.size());
    task.next_parameter = parameter.data();
    task.next_first = first.data();
    task.next_second = second.data();
    task.numel = stop - at;
    task.streaming = update.streaming;
    troupe::update(task);
  }
}

}  // namespace troupe
