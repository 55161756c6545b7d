#pragma once
#include <string>
#include <vector>

namespace troupe {

/// `troupe checkpoint ls|inspect|verify|convert …`; `words` are those after `checkpoint`. Returns the exit code: 0, or
/// 65 if a checkpoint was found damaged. Throws Error(usage) for a command line that it does not understand,
/// Error(bad_data) for a file that it can't use.
int checkpoint_command(const std::vector<std::string>& words);

}  // namespace troupe
