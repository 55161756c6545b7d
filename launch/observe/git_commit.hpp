#pragma once
#include <string>

namespace troupe {

/// The commit that is checked out where `folder` lies in a Git tree: 40 or 64 hexadecimal digits; empty where it lies
/// in none, or where what is there can't be understood. Reads .git, runs nothing, and says nothing about changes that
/// were not committed. Pipes, links and files of users other than this one and root are passed over.
std::string git_commit(const std::string& folder);

}  // namespace troupe
