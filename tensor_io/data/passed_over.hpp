#pragma once
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>

namespace troupe {

/// Files that a reader does not read, counted by kind: their extension in small letters, "hidden", "without extension".
class PassedOver {
 public:
  /// `name`: a path; what stands before its last / does not count.
  void add(const std::string& name);
  void add_all(const PassedOver& other);
  std::int64_t count() const;
  /// Of these kinds.
  std::int64_t count(std::initializer_list<const char*> kinds) const;
  /// "20 files passed over (.bmp 18, hidden 2)", the most frequent kinds first; empty if there are none.
  std::string to_string() const;

 private:
  std::map<std::string, std::int64_t> kinds_;
};

}  // namespace troupe
