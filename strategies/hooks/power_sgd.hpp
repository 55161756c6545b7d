#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "actors/rank/comm_hook.hpp"

namespace troupe {

/// PowerSGD (Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
/// Optimization", NeurIPS 2019).
///
/// A gradient matrix M (rows, columns) travels as P = M Q and Q = Mᵀ P, rank columns each, instead of as rows × columns
/// numbers. The remainder of the approximation P Qᵀ is added to the next step's gradient (error feedback). The next
/// step starts from this one's Q (warm start: one power iteration a step follows the slowly moving subspace). Vectors,
/// and matrices that P and Q would not make smaller, travel whole, together with the P's. Two collectives per bucket.
///
/// A gradient that is zero on all ranks, of a parameter that the step does not use, stays zero: the remainder waits.
///
/// The result is the same bits on all ranks. So are P and Q, and the rest is one loop in a fixed order, or, on devices
/// of one kind, the same operators. The error is each rank's own, so `state` must be kept per rank. It takes twice the
/// memory of the compressed gradients: a step that is given up must find the error that it began with.
///
/// On a device nothing waits for it: the device decides by P's finiteness which error is kept.
class PowerSgd final : public CommHook {
 public:
  /// Throws Error(usage) if rank < 1. Steps before `start_step` send gradients whole: the first ones change too fast to
  /// be tracked.
  PowerSgd(std::int64_t rank, std::int64_t start_step);

  void reduce(BucketView& bucket, Communicator& communicator) override;
  /// `<parameter>.error` (rows, columns) and `<parameter>.q` (rank, columns), the live tensors.
  NamedTensors state() override;
  /// Throws Error(mismatch) for a name that is neither.
  void load_state(const NamedTensors& state) override;
  void roll_back(std::int64_t step) override;
  void hand_over(Communicator& communicator) override;

 private:
  struct Factors {
    at::Tensor error;  // (rows, columns) f32, this rank's
    at::Tensor q;      // (rank, columns) f32, the same on all ranks; Q transposed, so that its rows are contiguous
  };
  /// Of one parameter. A step reads one pair and writes the other.
  struct History {
    Factors pairs[2];
    at::Tensor start;        // on a device: (rank, columns), replaces rows of zeros in q
    int current = 0;         // the pair that the next step reads
    std::int64_t step = -1;  // wrote `current`
  };
  /// One compressed gradient of the bucket at hand.
  struct Matrix {
    History* history;
    at::Tensor values;    // (rows, columns), a view of the bucket
    at::Tensor gradient;  // the same, or its f32 copy
    at::Tensor p;         // (rows, rank), a view of the sent memory
    at::Tensor q;         // (rank, columns), a view of the sent memory
    at::Tensor used;      // (), a view of the sent memory: above 0 if a rank's own gradient is not zero
  };
  /// The data that travels of a bucket, P's and whole ones first.
  struct Parcel {
    at::Tensor p, q;  // (numel,) f32, scratch
    std::vector<Matrix> matrices;
    std::vector<std::pair<at::Tensor, at::Tensor>> whole;  // gradient, its place in p
  };
  std::int64_t rank_for(const at::Tensor& gradient) const;  // 0: travels whole
  History& history_of(const std::string& name, std::int64_t rows, std::int64_t columns, std::int64_t rank,
                      c10::Device device);
  at::Tensor scratch(at::Tensor& memory, std::int64_t numel, c10::Device device);
  Parcel compress(const BucketView& bucket);
  void finish(const BucketView& bucket, Parcel& parcel, Communicator& communicator);
  void finish_on_device(const BucketView& bucket, Parcel& parcel, Communicator& communicator);

  // Constant after construction.
  std::int64_t rank_, start_step_;
  // The reducer's thread.
  std::map<std::string, History> histories_;
  at::Tensor send_p_, send_q_;  // grown as needed
};

}  // namespace troupe
