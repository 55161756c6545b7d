#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "strategies/mesh/stage_cut.hpp"
#include "strategies/mesh/tensor_plan.hpp"
#include "tensor_io/layout/bucket_plan.hpp"
#include "tensor_io/layout/named_state.hpp"

namespace troupe {

/// The parameters of a model of which each rank holds a part: which part of each is on this rank, and which of them the
/// step has used. Their order is that of registration, the same on all ranks. The destructor gives the model its whole
/// values back, unless they were forgotten. Compute's thread.
class MeshParameters {
 public:
  struct Parameter {
    std::string name;
    at::Tensor tensor;                // this rank's part, or an outline without memory
    std::vector<std::int64_t> sizes;  // of the whole
    bool trained = true;
    int block = -1;        // outermost block; -1: outside of all
    bool own = true;       // its values are here
    bool partial = false;  // sequence parallel: the ranks' sum is the gradient
    ParameterCut cut;
    bool used = false;
    at::Tensor whole;  // before the cut, until all have joined: attach may come again
    unsigned hook = 0;
  };

  MeshParameters() = default;
  ~MeshParameters();
  MeshParameters(const MeshParameters&) = delete;
  MeshParameters& operator=(const MeshParameters&) = delete;

  /// Once, while the model is whole. Throws Error(usage) for a parameter with two names, or of another type than
  /// float32.
  void collect(const torch::nn::Module& model, const std::function<bool(const at::Tensor&)>& trains);
  const std::vector<Parameter>& all() const noexcept { return parameters_; }
  const std::vector<std::string>& names() const noexcept { return names_; }
  /// Empty: there is no such parameter.
  std::optional<std::size_t> index_of(std::string_view name) const;
  std::optional<std::size_t> index_of(const at::Tensor& parameter) const;
  std::vector<ParameterLayout> layout() const;  ///< of the model as it is whole

  /// The layers of `parts` have been cut.
  void share(const SharedParameters& parts);
  void find_blocks(const StageCut& cut);
  std::vector<double> numel_by_block(const StageCut& cut) const;
  /// Frees the values of those that `rank` of the pipeline does not hold.
  void release_other_stages(const StageCut& cut, int rank);
  void forget_wholes();
  NamedTensors held() const;                         ///< by this rank, detached
  std::map<std::string, ParameterCut> cuts() const;  ///< of this rank, by parameter
  std::set<std::string> elsewhere() const;           ///< parameters of other stages

  void clear_uses();
  void mark_used(const at::Tensor& parameter);
  std::vector<bool> used() const;
  /// Whether a backward marks the parameters that it reaches. Returns whether it did before.
  bool mark_uses(bool marks) noexcept { return std::exchange(marks_uses_, marks); }

 private:
  std::vector<Parameter> parameters_;
  std::vector<std::string> names_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::map<const c10::TensorImpl*, std::size_t> by_tensor_;
  bool marks_uses_ = true;
};

}  // namespace troupe
