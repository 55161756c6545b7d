#pragma once
#include <string>
#include <vector>

namespace troupe {

/// The names that `name-{000000..000146}.tar` stands for, in order: numbers from the first to the second, as wide as
/// the wider if one begins with 0, or the words of `{train,val}`; several groups multiply. Throws Error(usage) for a
/// group that is not closed, is neither, or lies in another, and beyond 1,000,000 names.
std::vector<std::string> expand_braces(const std::string& pattern);

}  // namespace troupe
