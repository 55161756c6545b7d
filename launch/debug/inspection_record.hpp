#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace troupe {

/// A tensor without its values.
struct InspectedTensor {
  std::string name;   ///< in the model, or the batch's field; "loss"
  std::string shape;  ///< `(64, 3)`
  std::string dtype, device;
  bool dense = true;  ///< its memory has no gaps and no overlaps
  bool requires_grad = false;
  bool buffer = false;  ///< of the model, and no parameter
  bool finite = true;   ///< no NaN; of a parameter and the loss: no infinity either
  std::string digest;   ///< of its bits; empty: not taken
  bool operator==(const InspectedTensor&) const = default;
};

/// Some of a gradient's values: element i * numel / values.size(), for every i.
struct InspectedGradient {
  std::string name;
  std::vector<double> values;
};

/// In a record, instead of NaN or infinity.
inline constexpr double kNotFinite = 1e300;

/// The times of a rank's steps.
struct InspectedPace {
  std::vector<double> step_ms;              ///< by step
  std::vector<std::vector<double>> own_ms;  ///< by step and rank, without waiting for others
  double exposed = 0;                       ///< share of the steps' time that compute waited for communication
};

/// Of the first step that was applied.
struct InspectedGradients {
  std::vector<InspectedGradient> local;  ///< of this rank's part, before any reduction
  std::vector<InspectedGradient> whole;  ///< reduced, whatever the strategy; rank 0 alone
  std::int64_t step = -1;                ///< from 0; -1: none was applied
  std::vector<std::string> unused;       ///< parameters that got none on any rank; rank 0 alone
};

/// One rank's record of an inspected run.
struct InspectionRecord {
  int rank = 0, world_size = 1;
  int data_rank = 0;  ///< ranks with the same one work on the same samples
  std::string strategy;
  bool comparable = true;                        ///< its step has the gradient of one rank with the same samples
  std::string device;                            ///< the rank's
  std::map<std::string, std::string> settings;   ///< each setting's value
  std::map<std::string, std::string> put_aside;  ///< settings that the inspection changed
  bool keeps_checkpoints = false;
  std::vector<InspectedTensor> model;             ///< parameters, then buffers, before the strategy had them
  std::vector<InspectedTensor> buffers_at_end;    ///< after the last step
  std::vector<std::string> batch_norms;           ///< modules that take their statistics from this rank's part alone
  std::vector<std::string> dropouts;              ///< modules that were switched off for the gradients
  std::vector<InspectedTensor> batch;             ///< the first batch's fields; empty: the loop shows none
  std::vector<std::vector<std::string>> samples;  ///< a digest for each sample, by batch
  std::vector<InspectedTensor> loss;              ///< the first; empty: there was none
  std::vector<double> losses;                     ///< of all ranks, by step
  InspectedPace pace;
  InspectedGradients gradients;
  bool ended = false;  ///< its inspection, or its loop, came to its end

  std::string to_json() const;
  /// Throws Error(bad_data) with the file's name.
  static InspectionRecord read(const std::string& path);
};

}  // namespace troupe
