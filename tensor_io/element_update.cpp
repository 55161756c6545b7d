#include "tensor_io/element_update.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "tensor_io/error.hpp"
#include "tensor_io/fused_optimizer.hpp"
#include "tensor_io/reduced_update.hpp"

namespace troupe {
namespace {

at::Tensor flat(const at::Tensor& dense) { return dense.as_strided({dense.numel()}, {1}); }

at::Tensor padded(const at::Tensor& dense) {
  constexpr std::int64_t kLine = 16;
  auto copy = at::zeros({(dense.numel() + kLine - 1) / kLine * kLine}, at::kFloat);
  copy.narrow(0, 0, dense.numel()).copy_(flat(dense));
  return copy;
}

UpdatedState padded(const ElementState& element) {
  return {padded(element.parameter), element.first.defined() ? padded(element.first) : at::Tensor(),
          element.second.defined() ? padded(element.second) : at::Tensor()};
}

UpdatedState like(const UpdatedState& state) {
  const auto same = [](const at::Tensor& tensor) { return tensor.defined() ? at::empty_like(tensor) : tensor; };
  return {same(state.parameter), same(state.first), same(state.second)};
}

void take_back(const at::Tensor& from, const at::Tensor& to) {
  if (to.defined()) flat(to).copy_(from.narrow(0, 0, to.numel()));
}

}  // namespace

at::Tensor gradient_lines(const ElementState& element) {
  at::NoGradGuard no_grad;
  const auto& given = element.parameter.grad();
  return given.defined() ? padded(kernel_gradient(element.name, element.parameter, given)) : at::Tensor();
}

void update_elements(Optimizer& optimizer, double lr, const char* field) {
  at::NoGradGuard no_grad;
  std::string why_not;
  const auto elements = optimizer.elements(why_not);
  if (!why_not.empty())
    throw Error(ErrorCode::usage, field, why_not,
                std::string("use the framework's sgd or adamw and f32 parameters, or leave ") + field + " out");
  for (const auto& element : elements) {
    const auto gradient = gradient_lines(element);
    if (!gradient.defined()) continue;
    const auto step = element.step.item<float>() + 1;
    ReducedUpdate update{padded(element), {}, {}, false};
    update.next = like(update.state);
    update.runs.push_back({0, update.next.parameter.numel(), element.rule(lr, static_cast<double>(step))});
    apply_update(update, {gradient.const_data_ptr<float>()}, 1, copies_here(update.next), 0, gradient.numel());
    take_back(update.next.parameter, element.parameter);
    take_back(update.next.first, element.first);
    take_back(update.next.second, element.second);
    *element.step.mutable_data_ptr<float>() = step;
  }
}

}  // namespace troupe
