#pragma once
#include <string>
#include <vector>

namespace troupe {

/// `troupe drain HOST [RUN]`: a host's ranks leave the job of a run, and the others go on. `words` without these two.
/// Returns the exit code. Throws Error.
int drain_command(const std::vector<std::string>& words);

}  // namespace troupe
