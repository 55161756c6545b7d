#include "tensor_io/layers/parallel_layers.hpp"

#include "tensor_io/base/error.hpp"
#include "tensor_io/layers/deferred_weights.hpp"

namespace troupe {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// x W^T, whose backward may leave W's gradient for later.
struct Product : torch::autograd::Function<Product> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    context->save_for_backward({x});
    context->saved_data["weight"] =
        weight;  // itself: a recompute would give another tensor, and its gradient belongs here
    return at::linear(x, weight);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto x = context->get_saved_variables()[0], weight = context->saved_data["weight"].toTensor();
    const auto& gradient = gradients[0];
    const auto dtype = gradient.scalar_type();  // autocast's, where that is on
    at::Tensor of_x, of_weight;
    if (context->needs_input_grad(0)) of_x = gradient.matmul(weight.detach().to(dtype)).to(x.scalar_type());
    const auto weights = [x = x.detach().to(dtype), gradient = gradient.detach(), of = weight.scalar_type()] {
      return gradient.reshape({-1, gradient.size(-1)}).t().mm(x.reshape({-1, x.size(-1)})).to(of);
    };
    if (context->needs_input_grad(1)) {
      if (auto* later = DeferredWeights::current()) {
        later->add(weight, weights);
      } else {
        of_weight = weights();
      }
    }
    return {of_x, of_weight};
  }
};

// In the dtype of the product, as autocast has it in at::linear.
at::Tensor with_bias(const at::Tensor& y, const at::Tensor& bias) {
  return bias.defined() ? y + bias.to(y.scalar_type()) : y;
}

}  // namespace

std::vector<ParameterCut::Run> ParameterCut::runs(std::int64_t length, const std::string& what) const {
  if (length % (stack * ranks) != 0) {
    throw Error(ErrorCode::usage, "tensor_plan",
                what + " has " + std::to_string(length) +
                    (stack > 1 ? " in " + std::to_string(stack) + " parts" : std::string()) + " along dimension " +
                    std::to_string(dim) + ", which " + std::to_string(ranks) + " ranks can't share",
                "make it a multiple of tp, or leave it out of the plan");
  }
  const auto part = length / stack, own = part / ranks;
  std::vector<Run> runs;
  for (std::int64_t s = 0; s < stack; ++s) runs.push_back({s * part + rank * own, s * own, own});
  return runs;
}

namespace nn {

at::Tensor LinearImpl::product(const at::Tensor& x, const at::Tensor& bias_or_none) const {
  if (!may_defer_ || !at::GradMode::is_enabled() || !weight.requires_grad()) return at::linear(x, weight, bias_or_none);
  return with_bias(Product::apply(x, weight), bias_or_none);
}

at::Tensor LinearImpl::forward(const at::Tensor& x) {
  if (split_ == LayerSplit::none || group_.ranks() == 1) return product(x, bias);
  if (split_ == LayerSplit::row) {
    const auto mine = product(x, {});
    const auto y = group_.sequence ? sum_and_split_tokens(mine, group_) : sum_over_ranks(mine, group_);
    return with_bias(y, bias);
  }
  const auto y = product(group_.sequence ? gather_tokens(x, group_) : copy_to_ranks(x, group_), bias);
  return split_ == LayerSplit::gather ? gather_last(y, group_) : y;
}

at::Tensor EmbeddingImpl::forward(const at::Tensor& ids) {
  if (split_ == LayerSplit::none || group_.ranks() == 1) return torch::nn::EmbeddingImpl::forward(ids);
  const auto own = weight.size(0), first = group_.rank() * own;
  if (ids.is_cpu() && ids.numel() > 0) {
    const auto [least, most] = at::aminmax(ids);
    if (least.item<std::int64_t>() < 0 || most.item<std::int64_t>() >= own * group_.ranks()) {
      throw Error(ErrorCode::usage, "embedding",
                  "an id is outside 0 to " + std::to_string(own * group_.ranks() - 1) + ", its rows",
                  "check the data's vocabulary");
    }
  }
  const auto elsewhere = ids.lt(first).logical_or(ids.ge(first + own));
  // The rank that has the padding row leaves it out of the gradient.
  const auto padding = options.padding_idx().value_or(-1);
  const auto rows = at::embedding(weight, (ids - first).masked_fill(elsewhere, 0),
                                  padding >= first && padding < first + own ? padding - first : -1);
  return sum_over_ranks(rows.masked_fill(elsewhere.unsqueeze(-1), 0), group_);
}

at::Tensor EmbeddingImpl::scores(const at::Tensor& x) {
  if (split_ == LayerSplit::none || group_.ranks() == 1) return at::linear(x, weight);
  return gather_last(at::linear(group_.sequence ? gather_tokens(x, group_) : copy_to_ranks(x, group_), weight), group_);
}

}  // namespace nn
}  // namespace troupe
