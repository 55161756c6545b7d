#pragma once
#include <fstream>
#include <sstream>
#include <string>

namespace troupe::testing {

/// A file below /proc; what there is of it where its process ends meanwhile, which an iterator over its buffer would
/// throw.
inline std::string proc_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace troupe::testing
