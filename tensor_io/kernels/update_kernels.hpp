#pragma once
#include <cstdint>

// No LibTorch here: see reduce_kernels.hpp.
namespace troupe {

/// An optimizer's step for one element, in f32; the values common to all elements are computed before.
struct UpdateRule {
  enum class Kind : std::uint8_t { sgd, adamw };
  Kind kind = Kind::sgd;
  bool has_first = false;   ///< SGD: with momentum
  bool nesterov = false;    ///< SGD
  bool is_first = false;    ///< SGD: the momentum becomes the gradient
  float lr = 0;             ///< SGD
  float weight_decay = 0;   ///< SGD: of the parameter, added to the gradient
  float momentum = 0;       ///< SGD
  float keep = 1;           ///< AdamW: 1 - lr * weight_decay
  float first_weight = 0;   ///< AdamW: 1 - beta1
  float beta2 = 0;          ///< AdamW
  float second_weight = 0;  ///< AdamW: 1 - beta2
  float step_size = 0;      ///< AdamW: lr / (1 - beta1^step)
  float root_factor = 1;    ///< AdamW: 1 / sqrt(1 - beta2^step)
  float eps = 0;            ///< AdamW
  bool operator==(const UpdateRule&) const = default;
};

/// One step of `numel` elements, out of place: the gradient is (gradients[0][i] + gradients[1][i] + ...) / divisor,
/// always in this order; the results are written into each of their copies. So no reduced gradient is stored, and an
/// update of a slice for several ranks reads it once. The formulas are those of LibTorch's fused optimizers
/// (torch.optim with fused=True), each operation rounded to f32, so that the bits are the same on every processor.
///
/// All pointers at 64 bytes, `numel` a multiple of 16. An output is no input.
struct UpdateTask {
  UpdateRule rule;
  const float* const* gradients = nullptr;
  int gradient_count = 1;
  int divisor = 1;
  const float* parameter = nullptr;
  const float* first = nullptr;   ///< SGD: momentum, nullptr without; AdamW: exp_avg
  const float* second = nullptr;  ///< AdamW: exp_avg_sq
  int parameter_copies = 1;
  int moment_copies = 1;
  float* const* next_parameter = nullptr;  ///< one for each copy
  float* const* next_first = nullptr;
  float* const* next_second = nullptr;
  std::int64_t numel = 0;
  /// Written past the caches: for more data than they hold. A fence comes with it.
  bool streaming = false;
};

void update(const UpdateTask& task) noexcept;

}  // namespace troupe
