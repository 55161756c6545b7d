#pragma once
#include <string>

#include "launch/report/measured_run.hpp"

namespace troupe {

/// Charts over the steps of a run: loss, accuracy, learning rate, throughput, waiting, memory. `baseline`: a second run
/// for lines beside those of the first; may be null. Accuracy, learning rate and memory have a chart only if the
/// records have them. Pure.
std::string training_html(const MeasuredRun& run, const MeasuredRun* baseline);
/// A chart for each figure of the strategy (`strategy/NAME`) and for each metric of the program: of log intervals a
/// line, of validations dots. Empty if there are none. Pure.
std::string own_metrics_html(const RunHistory& run);

}  // namespace troupe
