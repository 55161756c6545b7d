#pragma once
#include <string>

#include "launch/launcher/launcher.hpp"

namespace troupe {

/// What has to be the same on all nodes of a job, as far as the launcher knows it: nodes, ranks of each, the program's
/// name, and what its flags, its --config file and the environment say of settings that ranks share. One line.
std::string outline_of(const LauncherOptions& options);

/// The first thing in which two outlines differ, for the user, `theirs` being the one "there". Empty: nothing, or one
/// of them is empty.
std::string difference(const std::string& theirs, const std::string& ours);

}  // namespace troupe
