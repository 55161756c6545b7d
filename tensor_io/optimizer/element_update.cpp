#include "tensor_io/optimizer/element_update.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "tensor_io/base/error.hpp"
#include "tensor_io/optimizer/fused_optimizer.hpp"

namespace troupe {
namespace {

at::Tensor flat(const at::Tensor& dense) { return dense.as_strided({dense.numel()}, {1}); }

at::Tensor whole_lines(const at::Tensor& dense) {
  constexpr std::int64_t kLine = 16;
  auto copy = at::zeros({(dense.numel() + kLine - 1) / kLine * kLine}, at::kFloat);
  copy.narrow(0, 0, dense.numel()).copy_(flat(dense));
  return copy;
}

void take_back(const at::Tensor& from, const at::Tensor& to) {
  if (to.defined()) flat(to).copy_(from.narrow(0, 0, to.numel()));
}

}  // namespace

at::Tensor gradient_lines(const ElementState& element) {
  at::NoGradGuard no_grad;
  const auto& given = element.parameter.grad();
  return given.defined() ? whole_lines(kernel_gradient(element.name, element.parameter, given)) : at::Tensor();
}

void update_element(const ElementState& element, const at::Tensor& gradient, double lr, const UpdatedState& state,
                    const UpdatedState& next) {
  const ReducedUpdate update{state, next, {{0, gradient.numel(), element.next_rule(lr)}}, false};
  apply_update(update, {gradient.const_data_ptr<float>()}, 1, copies_here(next), 0, gradient.numel());
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
    const auto state = UpdatedState{element.parameter, element.first, element.second}.map(whole_lines);
    const auto next = state.map([](const at::Tensor& tensor) { return at::empty_like(tensor); });
    update_element(element, gradient, lr, state, next);
    take_back(next.parameter, element.parameter);
    take_back(next.first, element.first);
    take_back(next.second, element.second);
    *element.step.mutable_data_ptr<float>() += 1;
  }
}

}  // namespace troupe
