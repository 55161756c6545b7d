#pragma once
#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

#include "tensor_io/dropout.hpp"

namespace troupe {

/// What a module's forward depends on besides its arguments and parameters, written down while it runs, so that a second run computes the
/// same bits: LibTorch's CPU generator, the draws of troupe::nn::Dropout, autocast, and those buffers that forward changes (BatchNorm's
/// running statistics, which a second run must not move again). One thread.
class ForwardReplay {
 public:
  /// Around the first run. Keeps a copy of the generator's state (5 KB) and of buffers only where the run changed them.
  class Recording {
   public:
    Recording(ForwardReplay& replay, torch::nn::Module& module);
    ~Recording();
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

   private:
    ForwardReplay& replay_;
    torch::nn::Module& module_;
    DropoutDraws::Recording draws_;
  };

  /// Around a second run: brings all of it back, and at its end what was there before. Throws nothing.
  class Replaying {
   public:
    explicit Replaying(ForwardReplay& replay);
    ~Replaying();
    Replaying(const Replaying&) = delete;
    Replaying& operator=(const Replaying&) = delete;

   private:
    ForwardReplay& replay_;
    DropoutDraws::Replaying draws_;
    at::Tensor generator_before_;
    std::vector<at::Tensor> buffers_now_;
    bool autocast_before_, cache_before_;
    at::ScalarType dtype_before_;
  };

  /// LibTorch's generator was drawn from (or reseeded by another rank of this process).
  bool drew() const noexcept { return generator_.defined(); }

 private:
  at::Tensor generator_;  // its state before the run; undefined where the run left it as it was
  DropoutDraws draws_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;  // (live, its value before the run)
  bool autocast_ = false, cache_ = true;
  at::ScalarType dtype_ = at::kBFloat16;
};

}  // namespace troupe
