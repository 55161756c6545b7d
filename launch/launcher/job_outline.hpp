#pragma once
#include <string>

#include "launch/launcher/launcher.hpp"

namespace troupe {

/// The facts that must be the same on all nodes of a job, as far as the launcher knows them: nodes, ranks of each, the
/// program's name, and its values of settings that ranks share (flags, --config file, environment). One line.
std::string outline_of(const LauncherOptions& options);

/// The first difference of two outlines, for the user, `theirs` being the one "there". Empty: none, or one of them is
/// empty.
std::string difference(const std::string& theirs, const std::string& ours);

}  // namespace troupe
