#pragma once
#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

/// The public part of a registry's entry: in the config's help, and in the refusal of an unknown name.
struct RegisteredName {
  std::string name;         ///< as in a setting
  std::string description;  ///< one line for the help; may be empty
};

/// "a, b, c"; with " or " as `before_last`: "a, b or c".
inline std::string name_list(const std::vector<RegisteredName>& known, const std::string& before_last = ", ") {
  std::string list;
  for (std::size_t i = 0; i < known.size(); ++i) {
    if (i > 0) list += i + 1 < known.size() ? ", " : before_last;
    list += known[i].name;
  }
  return list;
}

/// Values by name: strategies, communication hooks, data sets, communicators. Any thread: simulated ranks register and
/// look up at the same time.
///
/// A registry is a local static of one function, which gives it the entries that ship at its first use. A registration
/// by a static initialiser would be lost if the linker took no other symbol of its file.
template <class Value>
class Registry {
 public:
  struct Entry {
    RegisteredName shown;
    Value value;
  };
  Registry() = default;
  Registry(std::initializer_list<Entry> shipped) {
    for (const auto& [shown, value] : shipped) add(shown.name, shown.description, value);
  }

  /// One of the same name is replaced and keeps its place in the order.
  void add(const std::string& name, const std::string& description, Value value) {
    std::lock_guard lock(mutex_);
    const auto [place, is_new] = places_.try_emplace(name, entries_.size());
    if (is_new) entries_.emplace_back();
    entries_[place->second] = {{name, description}, std::move(value)};
  }

  /// A copy, which stays valid when another thread replaces the entry; nothing for an unknown name.
  std::optional<Value> find(const std::string& name) const {
    std::lock_guard lock(mutex_);
    const auto found = places_.find(name);
    return found == places_.end() ? std::nullopt : std::optional<Value>(entries_[found->second].value);
  }

  /// All, in the order in which they were first added.
  std::vector<RegisteredName> names() const {
    std::lock_guard lock(mutex_);
    std::vector<RegisteredName> names;
    names.reserve(entries_.size());
    for (const auto& entry : entries_) names.push_back(entry.shown);
    return names;
  }

  /// All, in alphabetical order.
  std::vector<RegisteredName> sorted_names() const {
    auto sorted = names();
    std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    return sorted;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;                 // guarded by mutex_
  std::map<std::string, std::size_t> places_;  // guarded by mutex_: name -> index in entries_
};

}  // namespace troupe
