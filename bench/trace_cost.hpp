#pragma once
#include <nlohmann/json.hpp>

#include <string>

/// What a trace costs, in processor time. `span_off_ns`, `span_on_ns`: a span without a trace, and within its window. `steps`: for one rank
/// with operators, one without, and two simulated ranks without, the ms of a step (8 x Linear(1024), batch 16) outside and inside of the
/// window, all threads, and by how many percent the latter is more; medians over the steps, and of five runs. Files go below `folder`.
nlohmann::json trace_costs(const std::string& folder);
