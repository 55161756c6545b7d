#include "strategies/sync_batch_norm.hpp"

#include <vector>

namespace troupe {
namespace {

std::vector<std::int64_t> all_but_channel(const at::Tensor& input) {
  std::vector<std::int64_t> dims{0};
  for (std::int64_t d = 2; d < input.dim(); ++d) dims.push_back(d);
  return dims;
}

at::Tensor per_channel(const at::Tensor& values, const at::Tensor& like) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(like.dim()), 1);
  shape[1] = values.size(0);
  return values.to(like.scalar_type()).view(shape);
}

/// Mean and sum of squared deviations of all ranks' samples, from each rank's own, merged in f64 and in rank order (Chan, Golub and
/// LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979).
struct Statistics {
  at::Tensor mean, deviations;  // (C,) f64
  double count = 0;
};

Statistics over_all_ranks(const at::Tensor& input, Communicator& lane) {
  const auto dims = all_but_channel(input);
  const auto channels = input.size(1);
  const auto mean = input.mean(dims);
  const auto deviations = (input - per_channel(mean, input)).square_().sum(dims);
  const double count = static_cast<double>(input.numel() / channels);
  const auto mine = at::cat({mean.to(at::kDouble), deviations.to(at::kDouble), at::full({1}, count, at::kDouble)});
  auto all = at::empty({lane.world_size() * mine.numel()}, at::kDouble);
  lane.all_gather(all, mine, "sync_batch_norm");
  Statistics merged{at::zeros({channels}, at::kDouble), at::zeros({channels}, at::kDouble), 0};
  for (int r = 0; r < lane.world_size(); ++r) {
    const auto theirs = all.narrow(0, r * mine.numel(), mine.numel());
    const double n = theirs[2 * channels].item<double>();
    if (n == 0) continue;
    const auto delta = theirs.narrow(0, 0, channels) - merged.mean;
    const double total = merged.count + n;
    merged.deviations += theirs.narrow(0, channels, channels) + delta.square() * (merged.count * n / total);
    merged.mean += delta * (n / total);
    merged.count = total;
  }
  return merged;
}

struct SyncBatchNorm : torch::autograd::Function<SyncBatchNorm> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& bias, const at::Tensor& mean, const at::Tensor& inverse_stddev, double count,
                            std::int64_t lane) {
    const auto normalised = (input - per_channel(mean, input)) * per_channel(inverse_stddev, input);
    ctx->save_for_backward({normalised, weight, inverse_stddev});
    ctx->saved_data["count"] = count;
    ctx->saved_data["lane"] = lane;
    return normalised * per_channel(weight, input) + per_channel(bias, input);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx, torch::autograd::variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto& normalised = saved[0];
    const auto& weight = saved[1];
    const auto& inverse_stddev = saved[2];
    const auto& dy = gradients[0];
    const double count = ctx->saved_data["count"].toDouble();
    auto* lane = reinterpret_cast<Communicator*>(ctx->saved_data["lane"].toInt());
    const auto dims = all_but_channel(dy);
    const auto grad_bias = dy.sum(dims);
    const auto grad_weight = (dy * normalised).sum(dims);
    auto sums = at::cat({grad_bias.to(at::kDouble), grad_weight.to(at::kDouble)});
    lane->all_reduce(sums, ReduceOp::sum, "sync_batch_norm");
    const auto channels = dy.size(1);
    const auto mean_dy = sums.narrow(0, 0, channels) / count, mean_dy_x = sums.narrow(0, channels, channels) / count;
    const auto dx = (dy - per_channel(mean_dy, dy) - normalised * per_channel(mean_dy_x, dy)) * per_channel(inverse_stddev * weight, dy);
    return {dx, grad_weight, grad_bias, {}, {}, {}, {}};
  }
};

}  // namespace

namespace nn {

BatchNormImpl::BatchNormImpl(std::int64_t features, double eps, double momentum) : eps_(eps), momentum_(momentum) {
  weight = register_parameter("weight", torch::ones({features}));
  bias = register_parameter("bias", torch::zeros({features}));
  running_mean = register_buffer("running_mean", torch::zeros({features}));
  running_var = register_buffer("running_var", torch::ones({features}));
  num_batches_tracked = register_buffer("num_batches_tracked", torch::zeros({}, torch::kLong));
}

at::Tensor BatchNormImpl::forward(const at::Tensor& input) {
  if (input.dim() < 2 || input.size(1) != weight.size(0)) {
    throw Error(ErrorCode::usage, "BatchNorm",
                "the input has " + (input.dim() < 2 ? std::string("no channel dimension") : std::to_string(input.size(1)) + " channels") +
                    ", the module " + std::to_string(weight.size(0)));
  }
  if (!is_training()) return at::batch_norm(input, weight, bias, running_mean, running_var, false, momentum_, eps_, false);
  num_batches_tracked.add_(1);
  if (!lane_ || lane_->world_size() == 1)
    return at::batch_norm(input, weight, bias, running_mean, running_var, true, momentum_, eps_, false);
  Statistics statistics;
  {
    torch::NoGradGuard no_grad;
    statistics = over_all_ranks(input, *lane_);
    running_mean.mul_(1 - momentum_).add_(statistics.mean.to(running_mean.scalar_type()), momentum_);
    const auto unbiased = statistics.deviations / std::max(1.0, statistics.count - 1);
    running_var.mul_(1 - momentum_).add_(unbiased.to(running_var.scalar_type()), momentum_);
  }
  const auto inverse_stddev = (statistics.deviations / statistics.count + eps_).rsqrt().to(at::kFloat);
  return SyncBatchNorm::apply(input, weight, bias, statistics.mean.to(at::kFloat), inverse_stddev, statistics.count,
                              reinterpret_cast<std::int64_t>(lane_.get()));
}

}  // namespace nn

int convert_sync_batchnorm(torch::nn::Module& model, const std::shared_ptr<Communicator>& lane) {
  int converted = 0;
  for (const auto& item : model.named_modules("", /*include_self=*/true)) {
    if (auto* ours = dynamic_cast<nn::BatchNormImpl*>(item.value().get())) {
      ours->synchronise(lane);
      ++converted;
    } else if (dynamic_cast<torch::nn::BatchNorm1dImpl*>(item.value().get()) ||
               dynamic_cast<torch::nn::BatchNorm2dImpl*>(item.value().get()) ||
               dynamic_cast<torch::nn::BatchNorm3dImpl*>(item.value().get())) {
      throw Error(ErrorCode::usage, "sync_batchnorm",
                  "module " + item.key() + " is a torch::nn::BatchNorm, which can't be converted from outside",
                  "build the model with troupe::nn::BatchNorm");
    }
  }
  return converted;
}

}  // namespace troupe
