#pragma once
#include <cstdint>
#include <string>

namespace troupe {

/// The value of the setting `profile`: `off`; `true`, a table of rank 0's times at the end; `steps=10:13`, the table
/// and a trace of steps 10, 11 and 12 of all ranks; `steps=10:13,operators=off`, the same without LibTorch's operators.
/// Pure.
struct ProfileSetting {
  bool table = false;
  std::int64_t first = 0,
               last = 0;  ///< steps of the trace, numbered from 0, the last one not among them; equal: no trace
  bool operators = true;

  bool traces() const noexcept { return last > first; }
  bool traces(std::int64_t step) const noexcept { return first <= step && step < last; }
};

/// Reads true or false, in any of their spellings; false: it is none of them.
bool parse_switch(const std::string& text, bool& value);
/// The mistake in the text, in a line; empty: none, and `setting` is filled in.
std::string parse_profile(const std::string& text, ProfileSetting& setting);
/// Of a text that was accepted.
ProfileSetting profile_setting(const std::string& text);

}  // namespace troupe
