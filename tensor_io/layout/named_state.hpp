#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tensor_io/files/xxh3.hpp"
#include "tensor_io/layout/named_tensors.hpp"  // IWYU pragma: export

namespace troupe {

/// Everything that a job needs to go on from a step, in one process.
/// Tensor names: `model.<parameter or buffer>`, `optimizer.<parameter>.<moment>`.
struct TrainingState {
  std::int64_t step = 0;           ///< optimizer steps done
  std::int64_t epoch = 0;          ///< of the next step
  std::int64_t step_in_epoch = 0;  ///< the loader's cursor: the next step within it
  NamedTensors tensors;            ///< whole
  std::map<std::string, std::string>
      metadata;  ///< config (JSON), versions, job id, strategy, bucket plan, best metric, scaler …
  std::vector<std::string> rank_state;  ///< one JSON object per rank (RNG, rank-local things); indexed by rank
};

/// One rank's block of a tensor in a checkpoint.
struct TensorPart {
  std::string name;
  at::ScalarType dtype = at::ScalarType::Float;
  std::vector<std::int64_t> global_shape;  ///< of the whole tensor
  std::vector<std::int64_t> offsets;       ///< the block's start in it
  std::vector<std::int64_t> shape;         ///< of the block
  std::vector<at::Tensor> pieces;          ///< one behind the other, each in row-major order, they are the block

  /// The size of the block.
  std::size_t bytes() const;
};

/// One rank's part of a checkpoint. The parts of all ranks are disjoint and together the job's state.
struct CheckpointPart {
  std::int64_t step = 0, epoch = 0, step_in_epoch = 0;
  std::int64_t rank = 0, ranks = 1;
  std::map<std::string, std::string> metadata;  ///< rank 0's counts
  std::vector<TensorPart> tensors;              ///< in a file's order, see sort_for_file
  std::string rank_state;                       ///< a JSON object
  ChunkHashes hashes = {};                      ///< of the tensors' bytes as far as known, see Snapshot::take
};

}  // namespace troupe
