#pragma once
#include <map>
#include <set>
#include <string>
#include <string_view>

namespace troupe {

/// A mistake in the settings is every rank's first line: the screen shows it once. Each rank's log has its own.
class FirstWords {
 public:
  /// Whether the screen needs this line of `rank`. Not if it is the rank's first one, an error, and was another's.
  bool is_news(std::string_view rank, std::string_view line) {
    if (!spoken_.emplace(rank).second || !line.starts_with("error: ")) return true;
    return said_.emplace(line, rank).first->second == rank;
  }

 private:
  std::set<std::string> spoken_;
  std::map<std::string, std::string> said_;  // the error, and the first rank with it
};

}  // namespace troupe
