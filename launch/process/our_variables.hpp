#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// Our variables for a process's place in its job: a program that a rank starts is in none.
const std::vector<std::string>& job_variables();
/// Those and the others of ours that are no settings: none may be taken for one.
bool is_our_variable(std::string_view variable);

}  // namespace troupe
