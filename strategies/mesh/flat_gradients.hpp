#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <vector>

#include "strategies/mesh/mesh_parameters.hpp"

namespace troupe {

/// The gradients of the parameters that a rank holds and trains: views of one flat tensor. Those outside of blocks lie
/// first, since all stages have them and add them up. One for each cut of the model. Compute's thread.
class FlatGradients {
 public:
  /// Zeros on `device`; no parameter's `.grad` yet.
  FlatGradients(const std::vector<MeshParameters::Parameter>& parameters, c10::Device device);

  const at::Tensor& all() const noexcept { return flat_; }  ///< (numel,)
  at::Tensor outside_of_blocks() const { return flat_.narrow(0, 0, outside_numel_); }
  /// By the parameter's index; undefined if it has none here.
  const std::vector<at::Tensor>& views() const noexcept { return views_; }

  /// Makes each gradient its parameter's `.grad`; that of a parameter without one, or not `used`, is undefined.
  void show() const;
  void show(const std::vector<bool>& used) const;
  /// Makes each `.grad` undefined, so that a backward does not add to these.
  void hide() const;
  /// The first parameter whose gradient has NaN or infinity in it, or -1. Waits for the device.
  std::int32_t first_not_finite() const;

 private:
  std::vector<at::Tensor> parameters_, views_;
  at::Tensor flat_;
  std::int64_t outside_numel_ = 0;
};

}  // namespace troupe
