#pragma once
#include <string>

namespace troupe {

/// The style sheet of a report, with a class for each colour of the charts (c0, c1, ...). Pure.
std::string page_style();

}  // namespace troupe
