#pragma once
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tensor_io/base/held_value.hpp"
#include "tensor_io/device/dropout_key.hpp"

namespace troupe {

/// The place of a forward in the run. A model's random numbers may depend on it, so that they are the same on any
/// thread, in a simulated rank and in a process, and after a resume. Compute owns it and moves it on; layers read it on
/// Compute's thread.
struct ForwardPosition {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t micro_batch = 0;
  int shard = 0;            ///< of the data: the rank
  std::uint64_t visit = 0;  ///< changes with each setting of the position: a layer counts its calls anew
};

/// The draws of troupe::nn::Dropout in a forward, in order, so that the forward can be run again with the same masks.
/// One thread.
class DropoutDraws {
 public:
  /// While it lives, layers called on this thread record their draws.
  class Recording : HeldValue<DropoutDraws*> {
   public:
    explicit Recording(DropoutDraws& draws);
  };
  /// While it lives, they use the recorded draws, from the first on, and count nothing.
  class Replaying : HeldValue<DropoutDraws*> {
   public:
    explicit Replaying(DropoutDraws& draws);
  };

  /// The source of one mask.
  struct Draw {
    std::uint64_t key = 0, subsequence = 0;
  };
  /// For a layer: the draw to use instead of its own, if one is being replayed. Throws Error(usage) if there were fewer
  /// the first time.
  static const Draw* replayed();
  /// For a layer: records its draw, if draws are being recorded.
  static void note(Draw draw);

 private:
  std::vector<Draw> draws_;
  std::size_t next_ = 0;
};

namespace nn {

/// torch::nn::Dropout with the same options and numerics, whose mask is a function of (seed, step, micro-batch, data
/// shard, layer, call) and the element's place: Philox by counter (Salmon et al., "Parallel Random Numbers: As Easy as
/// 1, 2, 3", SC 2011), as CUDA's kernels have it. LibTorch's own draws from the one CPU generator of the process, which
/// simulated ranks share, so its masks depend on their timing.
///
/// Before its model is distributed it takes a key from LibTorch's generator, so that torch::manual_seed holds.
class DropoutImpl : public torch::nn::detail::_DropoutNd<DropoutImpl> {
 public:
  using torch::nn::detail::_DropoutNd<DropoutImpl>::_DropoutNd;

  /// Any shape and floating dtype -> the same. Throws Error(usage) if the options ask for `inplace`.
  at::Tensor forward(const at::Tensor& input);
  /// The next call's mask alone, in train mode: bool, true if an element is kept.
  at::Tensor draw_mask(at::IntArrayRef sizes, at::Device device);
  void pretty_print(std::ostream& stream) const override;

  /// Masks by this position from now on, as layer number `layer` of the model.
  void place(std::shared_ptr<const ForwardPosition> position, std::int64_t layer);
  /// Its input is part `rank` of `ranks` equal ones along dimension `dim` (negative: from the last): masks are that
  /// part of the whole's.
  void share(int dim, int rank, int ranks) { part_ = {dim, rank, ranks}; }

 private:
  struct Part {
    int dim = 0, rank = 0, ranks = 1;
  };
  at::Tensor mask(at::IntArrayRef sizes, at::Device device, const DropoutKey& key, std::uint64_t subsequence) const;

  Part part_;
  std::shared_ptr<const ForwardPosition> position_;
  std::int64_t layer_ = 0;
  std::uint64_t visit_ = 0, calls_ = 0;  // a layer that is called twice in a forward draws twice
};
TORCH_MODULE(Dropout);

}  // namespace nn

/// Elements that a dropout of probability `p` keeps: element i (in row-major order) by the i-th number of Philox's
/// (key, subsequence). Returns bool of `sizes` on `device`; the same on every device, and with any number of threads.
/// On a GPU by a kernel of the current stream, without a wait.
at::Tensor dropout_mask(at::IntArrayRef sizes, double p, const DropoutKey& key, std::uint64_t subsequence,
                        at::Device device = at::kCPU);

/// The key of all layers in the forward at this position.
std::uint64_t dropout_key(const ForwardPosition& position);

/// While it lives, layers called on this thread read their key from `key` (() i64 on the device) when their masks are
/// made. It serves a forward that is captured once and runs at other positions.
class DropoutKeyInMemory : HeldValue<const at::Tensor*> {
 public:
  explicit DropoutKeyInMemory(at::Tensor key);

 private:
  at::Tensor key_;
};

/// Every troupe::nn::Dropout of the model follows `position`. Returns their number.
int place_dropout(torch::nn::Module& model, const std::shared_ptr<const ForwardPosition>& position);

}  // namespace troupe
