#pragma once
#include <map>
#include <string>
#include <utility>

#include "actors/messages/messages.hpp"

namespace troupe {

/// Values that the ranks of one generation leave for each other, such as their addresses. Bounded by the need of a
/// rank: an address for each other rank, on each of its communicators. A value; sends nothing.
class RendezvousStore {
 public:
  static constexpr std::size_t kCommunicators = 64, kBytesOfValue = 1024;

  RendezvousStore() = default;
  explicit RendezvousStore(int world_size)
      : most_values_(kCommunicators * (static_cast<std::size_t>(world_size) + 8)) {}

  /// From the process in this slot. Returns why the value is not kept; empty: it is.
  std::string put(int slot, PutValue value) {
    const auto known = values_.find(value.key);
    if (known != values_.end() && known->second.slot != slot)
      return "a PutValue of slot " + std::to_string(known->second.slot) + "'s key, from slot " + std::to_string(slot);
    auto share = shares_[slot];
    if (known != values_.end()) {
      share.bytes -= known->first.size() + known->second.text.size();
    } else {
      ++share.values;
    }
    share.bytes += value.key.size() + value.value.size();
    if (share.values > most_values_ || share.bytes > most_values_ * kBytesOfValue)
      return "a PutValue of slot " + std::to_string(slot) + ": it has more values than its job needs";
    shares_[slot] = share;
    values_.insert_or_assign(std::move(value.key), Value{slot, std::move(value.value)});
    return {};
  }
  /// Null: there is no such value.
  const std::string* find(const std::string& key) const {
    const auto found = values_.find(key);
    return found != values_.end() ? &found->second.text : nullptr;
  }
  void clear() {
    values_.clear();
    shares_.clear();
  }
  std::size_t size() const noexcept { return values_.size(); }

 private:
  struct Value {
    int slot = -1;  // that left it
    std::string text;
  };
  struct Share {
    std::size_t values = 0, bytes = 0;
  };

  std::size_t most_values_ = 0;  // of a process
  std::map<std::string, Value> values_;
  std::map<int, Share> shares_;  // by slot
};

}  // namespace troupe
