#include "launch/config/command_flags.hpp"

#include <algorithm>
#include <charconv>

#include "launch/process/displayable.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {

FlagTarget filled(std::string& text) {
  return [&text](const std::string& flag, const std::string& value) {
    if (value.empty()) throw Error(ErrorCode::usage, flag, "the flag has no value");
    text = value;
  };
}

int whole_number(const std::string& flag, const std::string& text, int least, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    throw Error(ErrorCode::usage, flag,
                "'" + displayable(text) + "' is not a whole number from " + std::to_string(least) + " to " +
                    std::to_string(most));
  }
  return value;
}

std::string flag_in(const std::string& word) {
  auto name = word.substr(0, word.find('='));
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

std::size_t read_flags(const std::vector<std::string>& words, const CommandFlags& flags, const std::string& command,
                       std::size_t begin) {
  auto i = begin;
  for (; i < words.size() && words[i].starts_with("-"); ++i) {
    if (words[i] == "--") return i + 1;
    const auto equals = words[i].find('=');
    const auto name = flag_in(words[i]);
    const auto flag = flags.find(name);
    if (flag == flags.end()) {
      std::vector<std::string> known;
      for (const auto& [candidate, target] : flags) known.push_back(candidate);
      const auto near = nearest_name(name, known);
      throw Error(ErrorCode::usage, command, "there is no flag '" + displayable(name) + "'",
                  near.empty() ? "see " + command + " --help" : "did you mean " + near + "?");
    }
    if (auto* const* set = std::get_if<bool*>(&flag->second)) {
      **set = true;
      continue;
    }
    if (equals == std::string::npos && i + 1 == words.size())
      throw Error(ErrorCode::usage, name, "the flag has no value", "see " + command + " --help");
    const auto value = equals == std::string::npos ? words[++i] : words[i].substr(equals + 1);
    if (auto* const* text = std::get_if<std::string*>(&flag->second)) {
      **text = value;
    } else {
      std::get<2>(flag->second)(name, value);
    }
  }
  return i;
}

std::vector<std::string> read_words(const std::vector<std::string>& words, const CommandFlags& flags,
                                    const std::string& command) {
  std::vector<std::string> others;
  for (auto i = read_flags(words, flags, command); i < words.size(); i = read_flags(words, flags, command, i + 1))
    others.push_back(words[i]);
  return others;
}

}  // namespace troupe
