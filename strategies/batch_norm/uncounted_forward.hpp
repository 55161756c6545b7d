#pragma once
#include <torch/torch.h>

#include <utility>
#include <vector>

namespace troupe {

/// While it lives, a forward of the model counts nothing: a rank without samples repeats a batch, so that the others'
/// collectives find it there. Synchronised BatchNorms leave the batch out of their statistics. At its end all other
/// buffers get back their values of its beginning. `model` must outlive it. Compute's thread.
class UncountedForward {
 public:
  explicit UncountedForward(torch::nn::Module& model);
  ~UncountedForward();
  UncountedForward(const UncountedForward&) = delete;
  UncountedForward& operator=(const UncountedForward&) = delete;
  /// The buffers stay as they are: the step was given up, and its strategy puts them back.
  void keep_buffers() noexcept { before_.clear(); }

 private:
  torch::nn::Module& model_;
  std::vector<std::pair<at::Tensor, at::Tensor>> before_;  // a buffer, and its values
};

}  // namespace troupe
