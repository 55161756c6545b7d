#pragma once
// What one side of the comparison saw of a job.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace troupe::differential {

struct StepSeen {
  bool committed = true;
  double loss = 0, samples = 0, correct = 0;
  double norm = 0;   ///< of the gradient before clipping; where the job clips
  double rate = 0;   ///< of the first group
  double scale = 1;  ///< of the loss, by the scaler
  std::string type;  ///< of the model's output
};

/// Tensors by name: "model.X", and "optimizer.X.exp_avg" and so on.
using State = std::map<std::string, at::Tensor>;

struct Outcome {
  std::string error;                        ///< empty, or what the job ended with: one line
  std::map<std::int64_t, StepSeen> steps;   ///< by their numbers
  std::map<std::int64_t, State> states;     ///< by steps done
  std::int64_t between_steps = 0;           ///< calls of the program's work between steps
  std::string twice;                        ///< a step or validation that the metrics have more than once
  std::map<std::int64_t, double> held_out;  ///< losses of the validations, by steps done
};

/// By epoch and position: the number of the sample there. What is missing has its own number.
using Order = std::map<std::int64_t, std::map<std::int64_t, std::int64_t>>;

}  // namespace troupe::differential
