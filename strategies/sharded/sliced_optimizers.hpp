#pragma once
#include <map>
#include <set>
#include <string>

#include "strategies/sharded/sharded_parameters.hpp"
#include "tensor_io/optimizer/optimizer.hpp"

namespace troupe {

/// The optimizers that update this rank's slices in place of whole parameters, and moments from a copy until an
/// optimizer takes them. Compute's thread.
class SlicedOptimizers {
 public:
  /// Other ranks hold it: optimizers get an empty tensor for it.
  void add_elsewhere(const at::Tensor& parameter) { elsewhere_.insert(parameter.unsafeGetTensorImpl()); }
  /// The parameters lie anew, so that each optimizer needs other slices.
  void placed_anew() noexcept { ++placings_; }
  /// Gives the optimizer this rank's slices, unless it has them, and the restored moments of these. Throws Error(usage)
  /// for a parameter that is not the model's.
  void slice(Optimizer& optimizer, const ShardedParameters& parameters);

  /// A restored moment, undefined at first. `slot`: exp_avg ...
  at::Tensor& restored_moment(const std::string& parameter, const std::string& slot) {
    return restored_[parameter][slot];
  }
  void forget_restored() { restored_.clear(); }

 private:
  std::set<const c10::TensorImpl*> elsewhere_;
  int placings_ = 0;
  std::map<std::uint64_t, int> sliced_;                                // by optimizer: at which placing
  std::map<std::string, std::map<std::string, at::Tensor>> restored_;  // by parameter and slot
};

}  // namespace troupe
