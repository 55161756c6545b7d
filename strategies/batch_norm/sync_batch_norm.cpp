#include "strategies/batch_norm/sync_batch_norm.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "strategies/batch_norm/batch_norm_kernels.hpp"
#include "strategies/batch_norm/device_batch_norm.hpp"

namespace troupe {
namespace {

// The moments of all ranks' values. f64: the sum of squares loses what the mean's square dwarfs.
struct Statistics {
  at::Tensor mean, variance;  // (C,) f64, the variance biased
  double total = 0;
};

bool reduce_over_ranks(const at::Tensor& sums, const BatchNormCall& call) {
  return BatchNormCall::reached([&] { call.communicator->all_reduce(sums, ReduceOp::sum, call.label); });
}

Statistics over_all_ranks(const at::Tensor& input, BatchNormCall& call) {
  const auto channels = input.size(1);
  auto sums = at::zeros({2 * channels + 1}, at::kDouble);  // of values, of squares; count
  const auto counted = input.narrow(0, 0, call.counted_of(input));
  if (counted.numel() > 0) {
    // LibTorch's own pass over the data. It updates running statistics, which decide the precision too: f32 for a bf16
    // input.
    const auto dtype = input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const auto [mean, variance] =
        at::batch_norm_update_stats(counted, at::zeros({channels}, dtype), at::ones({channels}, dtype), 0);
    const auto samples = counted.numel() / channels;
    const auto count = static_cast<double>(samples);
    const auto mean64 = mean.to(at::kDouble);
    sums.narrow(0, 0, channels).copy_(mean64 * count);
    sums.narrow(0, channels, channels).copy_((variance.to(at::kDouble) + mean64.square()) * count);
    sums[2 * channels] = count;
  }
  const bool reached = reduce_over_ranks(sums, call);
  Statistics all;
  all.total = sums[2 * channels].item<double>();
  if (reached && !call.has_values(all.total)) return {at::zeros({channels}), at::ones({channels}), 0};
  all.mean = sums.narrow(0, 0, channels) / all.total;
  all.variance = (sums.narrow(0, channels, channels) / all.total - all.mean.square()).clamp_min_(0);
  return all;
}

using Maybe = std::optional<at::Tensor>;  // where a plain tensor must not be undefined

struct SyncBatchNorm : torch::autograd::Function<SyncBatchNorm> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& input, const Maybe& given_weight,
                            const Maybe& bias, const Maybe& mean_so_far, const Maybe& var_so_far, double momentum,
                            const c10::intrusive_ptr<BatchNormCall>& call) {
    const auto weight = given_weight.value_or(at::Tensor());
    const auto running_mean = mean_so_far.value_or(at::Tensor()), running_var = var_so_far.value_or(at::Tensor());
    const auto statistics = over_all_ranks(input, *call);
    call->total = statistics.total;
    if (running_mean.defined() && call->counts) {
      running_mean.copy_(running_mean.to(at::kDouble) * (1 - momentum) + statistics.mean * momentum);
      running_var.copy_(running_var.to(at::kDouble) * (1 - momentum) +
                        statistics.variance * (momentum * statistics.total / (statistics.total - 1)));
    }
    const auto dtype = input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const auto mean = statistics.mean.to(dtype), variance = statistics.variance.to(dtype);
    ctx->save_for_backward({input, weight, mean, variance});
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    return std::get<0>(at::native_batch_norm(input, weight, bias, mean, variance, /*training=*/false, 0, call->eps));
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto &input = saved[0], &weight = saved[1], &mean = saved[2], &variance = saved[3];
    const auto capsule = ctx->saved_data["call"].toCapsule();
    const auto& call = static_cast<const BatchNormCall&>(*capsule);
    const auto channels = input.size(1);

    // As if mean and variance were constants; then what their dependence on the input adds. Sums over all ranks'
    // samples go into that.
    const auto dy = call.counted_gradient(gradients[0], input);
    auto [grad_input, grad_weight, grad_bias] = at::native_batch_norm_backward(
        dy, input, weight, mean, variance, {}, {}, /*train=*/false, call.eps, {true, true, true});
    const auto sums = at::cat({grad_bias.to(at::kDouble), grad_weight.to(at::kDouble)});  // of dy, of dy * normalised
    reduce_over_ranks(sums, call);
    const auto inverse_stddev = (variance.to(at::kDouble) + call.eps).rsqrt();
    auto scale = inverse_stddev / call.total;
    if (weight.defined()) scale = scale * weight.to(at::kDouble);
    const auto constant = scale * sums.narrow(0, 0, channels);
    const auto slope = scale * sums.narrow(0, channels, channels) * inverse_stddev;
    if (const auto counted = call.counted_of(input); counted > 0)
      subtract_per_channel(grad_input.narrow(0, 0, counted), input.narrow(0, 0, counted), mean, constant, slope);
    if (!weight.defined()) grad_weight = grad_bias = at::Tensor();
    return {grad_input, grad_weight, grad_bias, {}, {}, {}, {}};
  }
};

}  // namespace

namespace nn {

void SynchronisedStatistics::synchronise(std::shared_ptr<Communicator> communicator, const std::string& name) {
  communicator_ = std::move(communicator);
  label_ = name.empty() ? "sync_batch_norm" : "sync_batch_norm " + name;
}

std::pair<at::Tensor, bool> SynchronisedStatistics::normalise(const at::Tensor& input, const at::Tensor& weight,
                                                              const at::Tensor& bias, const at::Tensor& running_mean,
                                                              const at::Tensor& running_var, double momentum,
                                                              double eps) const {
  auto call = c10::make_intrusive<BatchNormCall>();
  call->communicator = communicator_;
  call->label = label_;
  call->counted = counted_;
  call->eps = eps;
  const auto dense = input.contiguous(input.suggest_memory_format());
  auto output = input.is_cpu() ? SyncBatchNorm::apply(dense, Maybe(weight), Maybe(bias), Maybe(running_mean),
                                                      Maybe(running_var), momentum, call)
                               : device_batch_norm(dense, weight, bias, running_mean, running_var, momentum, call);
  return {std::move(output), call->counts};
}

void check_batch_norm_input(const at::Tensor& input, std::int64_t features, int dims) {
  const auto after = input.dim() - 2;
  const bool right = after >= 0 && (dims < 0 || after == dims || (dims == 1 && after == 0));
  if (!right) {
    throw Error(ErrorCode::usage, "BatchNorm" + (dims < 0 ? std::string() : std::to_string(dims) + "d"),
                "the input has " + std::to_string(input.dim()) + " dimensions",
                dims < 0    ? "it must be (N, C, ...)"
                : dims == 1 ? "it must be (N, C) or (N, C, L)"
                            : "it must have " + std::to_string(dims + 2));
  }
  if (input.size(1) != features) {
    throw Error(ErrorCode::usage, "BatchNorm",
                "the input has " + std::to_string(input.size(1)) + " channels, the module " + std::to_string(features));
  }
}

}  // namespace nn

int convert_sync_batchnorm(torch::nn::Module& model, const std::shared_ptr<Communicator>& communicator) {
  std::vector<std::pair<nn::SynchronisedStatistics*, std::string>> ours;
  for (const auto& item : model.named_modules("", /*include_self=*/true)) {
    auto* module = item.value().get();
    if (auto* norm = dynamic_cast<nn::SynchronisedStatistics*>(module)) {
      ours.emplace_back(norm, item.key());
      continue;
    }
    const int dims = dynamic_cast<torch::nn::BatchNorm1dImpl*>(module)   ? 1
                     : dynamic_cast<torch::nn::BatchNorm2dImpl*>(module) ? 2
                     : dynamic_cast<torch::nn::BatchNorm3dImpl*>(module) ? 3
                                                                         : 0;
    if (dims == 0) continue;
    const auto type = "BatchNorm" + std::to_string(dims) + "d";
    throw Error(ErrorCode::usage, "sync_batchnorm",
                "module '" + item.key() + "' is a torch::nn::" + type + ", which can't be converted from outside",
                "declare it as troupe::nn::" + type + ": same options, parameters and buffers");
  }
  for (auto& [norm, name] : ours) norm->synchronise(communicator, name);
  return static_cast<int>(ours.size());
}

bool has_sync_batchnorm(const torch::nn::Module& model) {
  const auto modules = model.modules();
  return std::any_of(modules.begin(), modules.end(), [](const auto& module) {
    const auto* norm = dynamic_cast<const nn::SynchronisedStatistics*>(module.get());
    return norm != nullptr && norm->synchronised();
  });
}

void move_sync_batchnorm(torch::nn::Module& model, const std::shared_ptr<Communicator>& communicator) {
  for (const auto& module : model.modules()) {
    auto* norm = dynamic_cast<nn::SynchronisedStatistics*>(module.get());
    if (norm != nullptr) norm->move(communicator);
  }
}

void count_samples_in_sync_batchnorm(torch::nn::Module& model, std::int64_t samples) {
  for (const auto& module : model.modules()) {
    if (auto* norm = dynamic_cast<nn::SynchronisedStatistics*>(module.get())) norm->count_samples(samples);
  }
}

}  // namespace troupe
