#pragma once
#include <nlohmann/json.hpp>

#include <string>

/// What a trace costs, in processor time. `span_off_ns`, `span_on_ns`: a span without a trace, and within its window.
/// `steps`: by what the window of 20 steps is (nothing, Kineto switched on by hand, `--profile` with and without
/// operators, two simulated ranks), the ms and page faults of a step (8 x Linear(1024), batch 16) outside and inside of
/// it, all threads, and by how many percent the latter takes longer: medians over the steps, then over 15 rounds in
/// turns, each run in a process of its own, with the median's 95 % interval. `close_ms`: what the window's last step
/// has to do besides. `beyond_kineto`: percent above Kineto alone, round by round. Files go below `folder`.
nlohmann::json trace_costs(const std::string& folder);
/// One of these runs: for a child process.
nlohmann::json trace_run(std::size_t variant, const std::string& folder);
