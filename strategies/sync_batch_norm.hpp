#pragma once
#include <torch/torch.h>

#include <memory>

#include "tensor_io/communicator.hpp"

namespace troupe {

namespace nn {

/// BatchNorm over (N, C), (N, C, L), (N, C, H, W) or (N, C, D, H, W), with the parameters, buffers and numerics of torch::nn::BatchNorm1d …
/// 3d, and one thing more: convert_sync_batchnorm makes its statistics those of all ranks together.
///
/// LibTorch's own module can't be converted: its forward is not virtual, and the member that a model calls can't be exchanged from outside.
class BatchNormImpl : public torch::nn::Module {
 public:
  explicit BatchNormImpl(std::int64_t features, double eps = 1e-5, double momentum = 0.1);
  at::Tensor forward(const at::Tensor& input);

  /// Statistics over the ranks of this lane from now on (compute's thread launches them, in program order); nullptr: this rank's alone.
  void synchronise(std::shared_ptr<Communicator> lane) { lane_ = std::move(lane); }

  at::Tensor weight, bias;                                    // (C,)
  at::Tensor running_mean, running_var, num_batches_tracked;  // (C,), (C,), ()

 private:
  double eps_, momentum_;
  std::shared_ptr<Communicator> lane_;
};
TORCH_MODULE(BatchNorm);

}  // namespace nn

/// Every troupe::nn::BatchNorm of the model synchronises its statistics over `lane`. Returns how many. Throws Error(usage) naming a
/// torch::nn::BatchNorm that it finds, since that one would silently stay local.
int convert_sync_batchnorm(torch::nn::Module& model, const std::shared_ptr<Communicator>& lane);

}  // namespace troupe
