#pragma once
#include <string>
#include <vector>

namespace troupe {

/// `troupe top [RUN | --port N] [--once]`; `words` are those after `top`. On a terminal the screen is drawn anew each
/// second until the run has ended; elsewhere, or with --once, once. Returns the exit code. Throws Error(usage),
/// Error(bad_data) for a folder that is no run's, Error(unavailable) if no process answers on the port.
int top_command(const std::vector<std::string>& words);

}  // namespace troupe
