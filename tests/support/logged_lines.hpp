#pragma once
#include <algorithm>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace troupe::testing {

/// What was logged, by any thread.
class LoggedLines {
 public:
  void add(const std::string& line) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(line);
  }
  bool has(const std::string& part) {
    const std::lock_guard lock(mutex_);
    return std::any_of(lines_.begin(), lines_.end(), [&](const auto& line) { return line.find(part) != line.npos; });
  }
  bool wait_for(const std::string& part) {
    for (int i = 0; i < 1000; ++i) {
      if (has(part)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  std::string all() {
    const std::lock_guard lock(mutex_);
    std::string text;
    for (const auto& line : lines_) text += line + "\n";
    return text;
  }
  std::string last() {
    const std::lock_guard lock(mutex_);
    return lines_.empty() ? "" : lines_.back();
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

}  // namespace troupe::testing
