#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

enum class PickleKind : std::uint8_t {
  none,
  number,  ///< whole, or a bool
  real,
  text,
  list,
  tuple,
  dict,    ///< `items`: key, value, key, value, ...; an OrderedDict is one, too
  name,    ///< of a class or function: `text` is "module\nname"
  call,    ///< `items`: a `name` and a `tuple` of arguments
  stored,  ///< lies outside of the pickle; `items`: the tuple with its place
};

/// A value in a pickle of Python.
struct PickleValue {
  PickleKind kind = PickleKind::none;
  std::int64_t number = 0;
  std::string_view text;
  std::vector<PickleValue*> items;

  bool is(PickleKind other) const noexcept { return kind == other; }
};

/// A pickle of protocol 2 from an untrusted source, read as data: no name in it is looked up, nothing is called. A
/// value may hold itself, or be held more than once. There are at most kMaxValues.
class Pickle {
 public:
  static constexpr std::size_t kMaxValues = std::size_t{1} << 20;
  /// Calls `refuse` with the reason for a pickle that it can't read, and throws its exception.
  Pickle(std::string bytes, const std::function<void(const std::string&)>& refuse);
  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;
  const PickleValue& root() const noexcept { return *root_; }

 private:
  class Machine;
  const std::string bytes_;
  std::deque<PickleValue> values_;
  const PickleValue* root_ = nullptr;
};

}  // namespace troupe
