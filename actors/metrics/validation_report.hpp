#pragma once
#include <cstdint>

#include "actors/step/logged_values.hpp"

namespace troupe {

/// The results of held-out data, over the samples of all ranks; the same on each.
struct ValidationReport {
  std::int64_t epoch = 0, step = 0;  ///< from 0; optimizer steps done
  double loss = 0, accuracy = 0;     ///< accuracy: 0 to 1
  double samples = 0, seconds = 0;
  LoggedValues logged;   ///< metrics of the program itself
  bool best = false;     ///< it is the run's best so far, by accuracy; among equals, and if none is counted, by loss
  double wall_time = 0;  ///< seconds since 1970
};

}  // namespace troupe
