#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

/// Tensors by name, in a fixed order: a model's state dict, an optimizer's moments.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Everything that a job needs to go on from a step, as far as it is the same on all ranks (data parallel: rank 0's is written).
/// Tensor names: `model.<parameter or buffer>`, `optimizer.<parameter>.<moment>`.
struct TrainingState {
  std::int64_t step = 0;                        ///< optimizer steps done
  std::int64_t epoch = 0;                       ///< the epoch that the next step belongs to
  std::int64_t step_in_epoch = 0;               ///< the loader's cursor: the next step within it
  NamedTensors tensors;                         ///< owned by whoever holds the struct: copies, not views of live memory
  std::map<std::string, std::string> metadata;  ///< config (JSON), versions, job id, strategy, bucket plan, best metric, scaler …
  std::vector<std::string> rank_state;          ///< one JSON object per rank (RNG, rank-local things); indexed by rank
};

}  // namespace troupe
