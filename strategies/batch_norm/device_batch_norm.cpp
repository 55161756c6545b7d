#include "strategies/batch_norm/device_batch_norm.hpp"

#include <algorithm>
#include <optional>
#include <tuple>

namespace troupe {
namespace {

// The count of a rank without values: LibTorch divides by the count so far, which must not be 0. So little changes no
// digit of any sum.
constexpr double kNoValues = 1e-30;

struct GatheredStatistics {
  at::Tensor mean, inverse_stddev;  // (C,) over all ranks
  at::Tensor counts;                // (ranks,) int32: values per channel
};

// `first`, and zeros for the other samples of a batch like `batch`.
at::Tensor filled_up(const at::Tensor& first, const at::Tensor& batch) {
  if (first.size(0) == batch.size(0)) return first;
  auto all = at::zeros_like(batch);
  all.narrow(0, 0, first.size(0)).copy_(first);
  return all;
}

at::ScalarType precision_of(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor in_precision(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.defined() ? tensor.to(dtype) : tensor;
}

// (2 C + 1): mean, 1 / sqrt(variance + eps), count.
at::Tensor own_statistics(const at::Tensor& input, std::int64_t values, const BatchNormCall& call) {
  const auto channels = input.size(1);
  const auto options = input.options().dtype(precision_of(input));
  if (values == 0)
    return at::cat({at::zeros({channels}, options), at::ones({channels}, options), at::full({1}, kNoValues, options)});
  const auto [mean, inverse_stddev] = at::batch_norm_stats(input, call.eps);
  return at::cat({mean, inverse_stddev, at::full({1}, values, options)});
}

GatheredStatistics gather_statistics(const at::Tensor& input, const at::Tensor& running_mean,
                                     const at::Tensor& running_var, double momentum, BatchNormCall& call) {
  const auto channels = input.size(1);
  const auto counted = input.narrow(0, 0, call.counted_of(input));
  const auto values = counted.numel() / channels;
  const auto mine = own_statistics(counted, values, call);
  const auto all = at::empty({call.communicator->world_size() * mine.numel()}, mine.options()).view({-1, mine.numel()});
  if (!BatchNormCall::reached([&] { call.communicator->all_gather(all.view(-1), mine, call.label); })) all.copy_(mine);
  const auto counts = all.select(1, 2 * channels);
  // Where there are too few on all ranks, no rank has two.
  if (values < 2 && BatchNormCall::reached([&] { call.communicator->wait_on_host(call.label); }) &&
      !call.has_values(counts.sum().item<double>())) {
    const auto zeros = at::zeros({channels}, mine.options());
    return {zeros, zeros + 1, at::zeros_like(counts, at::kInt).contiguous()};
  }
  // One dtype for all that goes in: LibTorch takes them as they are.
  const auto mean = in_precision(running_mean, all.scalar_type()),
             variance = in_precision(running_var, all.scalar_type());
  GatheredStatistics statistics;
  std::tie(statistics.mean, statistics.inverse_stddev) = at::batch_norm_gather_stats_with_counts(
      all, all.narrow(1, 0, channels), all.narrow(1, channels, channels), mean, variance, momentum, call.eps, counts);
  if (mean.defined() && !mean.is_same(running_mean)) {
    running_mean.copy_(mean);
    running_var.copy_(variance);
  }
  statistics.counts = counts.to(at::kInt).contiguous();
  return statistics;
}

struct DeviceBatchNorm : torch::autograd::Function<DeviceBatchNorm> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& input,
                            const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
                            const std::optional<at::Tensor>& running_mean, const std::optional<at::Tensor>& running_var,
                            double momentum, const c10::intrusive_ptr<BatchNormCall>& call) {
    const auto all = gather_statistics(input, running_mean.value_or(at::Tensor()), running_var.value_or(at::Tensor()),
                                       momentum, *call);
    ctx->save_for_backward({input, weight.value_or(at::Tensor()), all.mean, all.inverse_stddev, all.counts});
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    return input.numel() == 0 ? at::empty_like(input)
                              : at::batch_norm_elemt(input, weight, bias, all.mean, all.inverse_stddev, call->eps);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto &input = saved[0], &given = saved[1], &mean = saved[2], &inverse_stddev = saved[3], &counts = saved[4];
    const auto capsule = ctx->saved_data["call"].toCapsule();
    const auto& call = static_cast<const BatchNormCall&>(*capsule);
    const auto weight = in_precision(given, mean.scalar_type());
    const auto dy = call.counted_gradient(gradients[0], input);
    const bool affine = weight.defined();

    auto sum_dy = at::zeros_like(mean), sum_dy_xmu = sum_dy, grad_weight = sum_dy, grad_bias = sum_dy;
    if (input.numel() > 0) {
      std::tie(sum_dy, sum_dy_xmu, grad_weight, grad_bias) =
          at::batch_norm_backward_reduce(dy, input, mean, inverse_stddev, weight, /*input_g=*/true, affine, affine);
    }
    // What mean and variance add to the gradient of each sample that is in them.
    const auto sums = at::cat({sum_dy, sum_dy_xmu});
    BatchNormCall::reached([&] { call.communicator->all_reduce(sums, ReduceOp::sum, call.label); });
    const auto channels = mean.numel();
    auto grad_input = input.narrow(0, 0, 0);
    if (const auto counted = call.counted_of(input); counted > 0 && input.numel() > 0) {
      grad_input = at::batch_norm_backward_elemt(dy.narrow(0, 0, counted), input.narrow(0, 0, counted), mean,
                                                 inverse_stddev, weight, sums.narrow(0, 0, channels),
                                                 sums.narrow(0, channels, channels), counts);
    }
    grad_input = filled_up(grad_input, input);
    if (!affine) return {grad_input, {}, {}, {}, {}, {}, {}};
    return {grad_input, grad_weight.to(given.scalar_type()), grad_bias.to(given.scalar_type()), {}, {}, {}, {}};
  }
};

}  // namespace

std::int64_t BatchNormCall::counted_of(const at::Tensor& input) const {
  return counted < 0 ? input.size(0) : std::min(counted, input.size(0));
}

at::Tensor BatchNormCall::counted_gradient(const at::Tensor& gradient, const at::Tensor& input) const {
  const auto dy = gradient.contiguous(input.suggest_memory_format());
  return filled_up(dy.narrow(0, 0, counted_of(input)), dy);
}

bool BatchNormCall::reached(const std::function<void()>& collective) {
  try {
    collective();
    return true;
  } catch (const Error& error) {
    if (!may_be_recovered(error.code())) throw;
    return false;
  }
}

bool BatchNormCall::has_values(double values) {
  counts = values >= 0.5;  // a rank without any says 1e-30
  if (!counts || values >= 1.5) return counts;
  throw Error(ErrorCode::usage, label, "all ranks together have 1 value per channel",
              "statistics need two or more: use larger batches, or eval()");
}

at::Tensor device_batch_norm(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                             const at::Tensor& running_mean, const at::Tensor& running_var, double momentum,
                             const c10::intrusive_ptr<BatchNormCall>& call) {
  using Maybe = std::optional<at::Tensor>;  // a plain tensor must not be undefined there
  return DeviceBatchNorm::apply(input, Maybe(weight), Maybe(bias), Maybe(running_mean), Maybe(running_var), momentum,
                                call);
}

}  // namespace troupe
