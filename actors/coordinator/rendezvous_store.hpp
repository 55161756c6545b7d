#pragma once
#include <map>
#include <string>
#include <utility>

#include "actors/messages/messages.hpp"

namespace troupe {

/// Values that the ranks of one generation leave for each other, such as their addresses. A value; sends nothing.
class RendezvousStore {
 public:
  /// Returns why the value is not kept; empty: it is.
  std::string put(PutValue value) {
    constexpr std::size_t kMostValues = 1'000'000;  // 1,000 ranks that connect each with each
    if (values_.size() >= kMostValues) return "there are too many values";
    values_.insert_or_assign(std::move(value.key), std::move(value.value));
    return {};
  }
  /// Null: there is no such value.
  const std::string* find(const std::string& key) const {
    const auto found = values_.find(key);
    return found != values_.end() ? &found->second : nullptr;
  }
  void clear() { values_.clear(); }
  std::size_t size() const noexcept { return values_.size(); }

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace troupe
