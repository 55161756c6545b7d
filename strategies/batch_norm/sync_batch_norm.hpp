#pragma once
#include <torch/torch.h>

#include <memory>
#include <string>
#include <utility>

#include "tensor_io/communicator/communicator.hpp"

namespace troupe {

namespace nn {

/// The addition of our BatchNorms to LibTorch's: statistics over the samples of all ranks.
class SynchronisedStatistics {
 public:
  virtual ~SynchronisedStatistics() = default;

  /// Statistics over the ranks of this communicator from now on, while in training mode; nullptr: this rank's alone.
  /// Forward and backward launch one collective each, on the calling thread. So every rank must call this module
  /// equally often and in the same order.
  void synchronise(std::shared_ptr<Communicator> communicator, const std::string& name = {});
  /// Another communicator for statistics that are synchronised already.
  void move(const std::shared_ptr<Communicator>& communicator) {
    if (communicator_) communicator_ = communicator;
  }
  /// Only the first `samples` of a batch count, in the statistics and in the gradient; negative: all. 0: this rank has
  /// run out of data and only joins in.
  void count_samples(std::int64_t samples) { counted_ = samples; }
  /// Whether the statistics are those of several ranks, or of counted samples.
  bool synchronised() const { return communicator_ && (communicator_->world_size() > 1 || counted_ >= 0); }

 protected:
  /// The output, and whether any rank had a value: if none had, the running statistics stay. Throws Error(usage) if all
  /// ranks together have one value per channel.
  std::pair<at::Tensor, bool> normalise(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                                        const at::Tensor& running_mean, const at::Tensor& running_var, double momentum,
                                        double eps) const;

 private:
  std::shared_ptr<Communicator> communicator_;
  std::string label_;
  std::int64_t counted_ = -1;
};

/// Throws Error(usage) unless the input is (N, C, ...) with `features` channels and `dims` dimensions after C (0 or 1
/// for BatchNorm1d, any for -1).
void check_batch_norm_input(const at::Tensor& input, std::int64_t features, int dims);

/// torch::nn::BatchNorm1d, 2d, 3d with the same options, parameters, buffers and numerics. convert_sync_batchnorm can
/// take their statistics over all ranks. LibTorch's own module can't be converted: its forward is not virtual, and
/// the member that a model calls can't be exchanged from outside. `Dims` is 0 for an input with any number of
/// dimensions.
template <std::size_t Dims, class Derived>
class BatchNormImplBase : public torch::nn::BatchNormImplBase<Dims, Derived>, public SynchronisedStatistics {
  using Base = torch::nn::BatchNormImplBase<Dims, Derived>;

 public:
  using Base::Base;

  /// (N, C, ...) -> the same shape.
  at::Tensor forward(const at::Tensor& input) {
    if (!this->is_training() || !synchronised()) return Base::forward(input);
    _check_input_dim(input);
    const bool tracks = this->options.track_running_stats();
    double momentum = this->options.momentum().value_or(0);
    if (tracks && !this->options.momentum())
      momentum = 1 / (this->num_batches_tracked.template item<double>() + 1);  // the average of all
    const auto [output, counted] = normalise(input, this->weight, this->bias, this->running_mean, this->running_var,
                                             momentum, this->options.eps());
    if (tracks && counted) this->num_batches_tracked += 1;
    return output;
  }

  void pretty_print(std::ostream& stream) const override {
    stream << "troupe::nn::BatchNorm" << (Dims == 0 ? std::string() : std::to_string(Dims) + "d") << "("
           << this->options.num_features() << ", eps=" << this->options.eps()
           << (synchronised() ? ", synchronised)" : ")");
  }

 protected:
  void _check_input_dim(const at::Tensor& input) override {
    check_batch_norm_input(input, this->options.num_features(), Dims == 0 ? -1 : static_cast<int>(Dims));
  }
};

/// A batch norm for inputs with any number of dimensions.
class BatchNormImpl : public BatchNormImplBase<0, BatchNormImpl> {
 public:
  using BatchNormImplBase<0, BatchNormImpl>::BatchNormImplBase;
};
/// torch::nn::BatchNorm1d with statistics over all ranks.
class BatchNorm1dImpl : public BatchNormImplBase<1, BatchNorm1dImpl> {
 public:
  using BatchNormImplBase<1, BatchNorm1dImpl>::BatchNormImplBase;
};
/// torch::nn::BatchNorm2d with statistics over all ranks.
class BatchNorm2dImpl : public BatchNormImplBase<2, BatchNorm2dImpl> {
 public:
  using BatchNormImplBase<2, BatchNorm2dImpl>::BatchNormImplBase;
};
/// torch::nn::BatchNorm3d with statistics over all ranks.
class BatchNorm3dImpl : public BatchNormImplBase<3, BatchNorm3dImpl> {
 public:
  using BatchNormImplBase<3, BatchNorm3dImpl>::BatchNormImplBase;
};
TORCH_MODULE(BatchNorm);  // any number of dimensions
TORCH_MODULE(BatchNorm1d);
TORCH_MODULE(BatchNorm2d);
TORCH_MODULE(BatchNorm3d);

}  // namespace nn

/// Every troupe::nn::BatchNorm of the model synchronises its statistics over `communicator` (nullptr: it stops that).
/// Returns their number. Throws Error(usage) if it finds a torch::nn::BatchNorm, which would silently stay local, and
/// has changed nothing then.
int convert_sync_batchnorm(torch::nn::Module& model, const std::shared_ptr<Communicator>& communicator);

/// Whether a module of the model has collectives in its forward and backward.
bool has_sync_batchnorm(const torch::nn::Module& model);

/// After a change of membership: the modules that are synchronised go on over the new communicator.
void move_sync_batchnorm(torch::nn::Module& model, const std::shared_ptr<Communicator>& communicator);

/// For uneven inputs: only the first `samples` of this rank's next batches count in the synchronised statistics of the
/// model; negative: all. The rank still has to call forward and backward as often as the others.
void count_samples_in_sync_batchnorm(torch::nn::Module& model, std::int64_t samples);

}  // namespace troupe
