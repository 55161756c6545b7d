#pragma once
#include <string>

#include "launch/observe/run_folder.hpp"

namespace troupe {

/// Whether a record is a change of membership, after the first membership of the job.
bool is_change(const MetricRecord& record) noexcept;

/// The progress over time, and a table of the failures with ranks, hosts, causes and the time lost. Pure.
std::string failures_html(const RunHistory& run);
/// The last trace of the run, in the words of its record. Empty if there is none. Pure.
std::string trace_html(const RunHistory& run);
/// A table of all events. Empty if there are none. Pure.
std::string events_html(const RunHistory& run);

}  // namespace troupe
