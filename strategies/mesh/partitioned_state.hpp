#pragma once
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "strategies/mesh/mesh_parameters.hpp"
#include "tensor_io/checkpoint/state_reader.hpp"
#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/layers/parallel_layers.hpp"

namespace troupe {

/// The name in `model.<parameter>` or `optimizer.<parameter>.<moment>`; empty for anything else.
std::string parameter_in(std::string_view name);

/// A saved state for a rank whose parameters are cut: `model.<parameter>` and `optimizer.<parameter>.<moment>` have the
/// shapes of this rank's parts, and only requested parts are read. One thread.
class CutStateReader final : public StateReader {
 public:
  /// `cuts` by parameter; `elsewhere`: parameters that are not seen. `state` outlives it.
  CutStateReader(const StateReader& state, std::map<std::string, ParameterCut> cuts,
                 const std::set<std::string>& elsewhere);

  const std::map<std::string, Entry, std::less<>>& entries() const noexcept override { return entries_; }
  using StateReader::read;
  void read(const std::string& name, at::IntArrayRef offsets, const at::Tensor& target) const override;

 private:
  const StateReader& state_;
  std::map<std::string, ParameterCut> cuts_;
  std::map<std::string, Entry, std::less<>> entries_;
};

/// Throws Error(mismatch) if the saved model has other parameters, or other buffers than `model`, or a moment has not
/// the shape of its parameter.
void check_saved_model(const StateReader& state, const MeshParameters& parameters, const torch::nn::Module& model);

/// The run of a cut parameter, or of its moment, that this rank writes. If a rank holds several runs (column/3) the
/// ranks exchange theirs, since a file has each tensor once. Collective over `communicator`.
TensorPart part_of_cut(const std::string& name, const at::Tensor& own, const std::vector<std::int64_t>& sizes,
                       const ParameterCut& cut, Communicator& communicator);

}  // namespace troupe
