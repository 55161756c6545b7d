#pragma once
#include <string>
#include <vector>

namespace troupe {

/// The names of a pattern like `name-{000000..000146}.tar`, in order. A group has numbers from the first to the second,
/// as wide as the wider if one begins with 0, or the words of `{train,val}`; several groups multiply. Throws
/// Error(usage) for a group that is not closed, is neither, or lies in another, and beyond 1,000,000 names.
std::vector<std::string> expand_braces(const std::string& pattern);

}  // namespace troupe
