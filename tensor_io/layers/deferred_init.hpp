#pragma once
#include <torch/nn/module.h>

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

namespace troupe {

inline constexpr std::size_t kLeastDeferredBytes = std::size_t{64} << 10;  ///< of a tensor that is deferred

/// While one lives, this thread's fills of a tensor (uniform_, normal_, zero_ …) are not done but recorded with the
/// tensor, if it is 64 KiB or larger. Such a tensor has no memory until it is materialized. Random numbers are drawn
/// as ever, into memory that is given back at once, so that the generator and every value are those of the same code
/// without this. A read, then or later, materializes the tensor. The idea is torchdistX's `deferred_init` (Meta,
/// 2022).
class DeferredInitScope {
 public:
  DeferredInitScope();
  ~DeferredInitScope();
  DeferredInitScope(const DeferredInitScope&) = delete;
  DeferredInitScope& operator=(const DeferredInitScope&) = delete;

 private:
  bool before_;
};

/// A model that is larger than this rank's memory: `auto model = rank.distribute(deferred_init([] { return
/// Gpt(options); }));`. A sharded strategy materializes one unit after the other, on rank 0, and keeps its part.
template <class Build>
auto deferred_init(Build&& build) {
  const DeferredInitScope scope;
  return std::forward<Build>(build)();
}

/// Whether the tensor has no memory yet.
bool is_deferred(const at::Tensor& tensor);
/// Gives the tensor, and all that share its storage, memory and values. Does nothing if it has them.
void materialize(const at::Tensor& tensor);
/// All parameters and buffers; those that had no memory get it on `device`.
void materialize(const torch::nn::Module& model, c10::Device device = at::kCPU);
/// As `model.to(device)`, but for the parameters that have no memory: they stay without it, on the CPU.
void move_to(torch::nn::Module& model, c10::Device device);

}  // namespace troupe
