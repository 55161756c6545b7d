#pragma once
#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tensor_io/base/span_ranges.hpp"

namespace troupe::testing {

/// Notes the ranges that spans push and pop, by thread.
class NotedRanges final : public SpanRanges {
 public:
  NotedRanges() = default;
  NotedRanges(const NotedRanges&) = delete;
  ~NotedRanges() override { set_span_ranges(nullptr); }

  void push(const char* name) noexcept override {
    const std::lock_guard lock(mutex_);
    auto& thread = threads_[std::this_thread::get_id()];
    thread.open.emplace_back(name);
    auto path = thread.name + ":";
    for (const auto& range : thread.open) path += " / " + range;
    paths_.push_back(path);
    ++calls_;
  }
  void pop() noexcept override {
    const std::lock_guard lock(mutex_);
    auto& open = threads_[std::this_thread::get_id()].open;
    if (open.empty()) {
      underflow_ = true;
    } else {
      open.pop_back();
    }
    ++calls_;
  }
  void name_thread(const char* name) noexcept override {
    const std::lock_guard lock(mutex_);
    threads_[std::this_thread::get_id()].name = name;
    ++calls_;
  }

  /// Pushes, pops and names so far.
  int calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  /// `compute: / ProfilerStep#0 / forward`: each range when it was pushed, inside of those that were open.
  std::vector<std::string> paths() const {
    const std::lock_guard lock(mutex_);
    return paths_;
  }
  auto count(const std::string& path) const {
    const auto all = paths();
    return std::count(all.begin(), all.end(), path);
  }
  /// Every thread has popped what it pushed, and no more.
  bool balanced() const {
    const std::lock_guard lock(mutex_);
    return !underflow_ &&
           std::all_of(threads_.begin(), threads_.end(), [](const auto& t) { return t.second.open.empty(); });
  }

 private:
  struct Thread {
    std::string name;
    std::vector<std::string> open;
  };
  mutable std::mutex mutex_;
  std::map<std::thread::id, Thread> threads_;
  std::vector<std::string> paths_;
  int calls_ = 0;
  bool underflow_ = false;
};

}  // namespace troupe::testing
