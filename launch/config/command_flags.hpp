#pragma once
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "tensor_io/base/nearest_name.hpp"

namespace troupe {

/// The effect of a flag: a switch is set; a value is kept as it is, or read by a function, which may refuse it with
/// Error(usage).
using FlagTarget =
    std::variant<bool*, std::string*, std::function<void(const std::string& flag, const std::string& value)>>;
using CommandFlags = std::map<std::string, FlagTarget>;

/// A text that may not be empty.
FlagTarget filled(std::string& text);

/// Throws Error(usage) if `text` is no whole number from `least` to `most`.
int whole_number(const std::string& flag, const std::string& text, int least, int most);
/// A whole number in these bounds. `number` is an int, or an optional one.
template <class Number>
FlagTarget number_between(Number& number, int least, int most) {
  return [&number, least, most](const std::string& flag, const std::string& text) {
    number = whole_number(flag, text, least, most);
  };
}

/// The flag in a word, `--name` of `--name=value`, with - for each _.
std::string flag_in(const std::string& word);

/// Reads `--name value`, `--name=value` and switches, - and _ alike, from word `begin` on. Returns the index of the
/// first word that is no flag; after a `--` that is the next word. `command` is its name in errors, `troupe launch`.
/// Throws Error(usage).
std::size_t read_flags(const std::vector<std::string>& words, const CommandFlags& flags, const std::string& command,
                       std::size_t begin = 0);
/// The same of all words, with flags in any place. Returns the words that are none.
std::vector<std::string> read_words(const std::vector<std::string>& words, const CommandFlags& flags,
                                    const std::string& command);

}  // namespace troupe
