#pragma once
#include <string>

namespace troupe {

/// The commit that is checked out in the Git tree of `folder`: 40 or 64 hexadecimal digits; empty if there is no tree,
/// or its files can't be understood. Reads .git, runs nothing, and does not see uncommitted changes. Pipes, links and
/// files of users other than this one and root are passed over.
std::string git_commit(const std::string& folder);

}  // namespace troupe
