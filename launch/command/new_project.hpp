#pragma once
#include <string>
#include <vector>

namespace troupe {

struct ProjectFile {
  std::string name, text;
};

/// The files of examples/new_project, in which the project is called my_project.
std::vector<ProjectFile> project_files();

/// `troupe new DIR`: writes them into a new or empty folder, under the folder's name, and prints the next commands.
/// `own_path`: this program's, from which it knows where Troupe is installed, or built. Returns the exit code. Throws
/// Error(usage) for a folder that holds anything or a name that no CMake target can have, Error(io) if it cannot be
/// written.
int new_project_command(const std::vector<std::string>& words, const std::string& own_path);

}  // namespace troupe
