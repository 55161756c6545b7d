#include "tensor_io/files/braces.hpp"

#include <cstdint>

#include "tensor_io/base/error.hpp"
#include "tensor_io/base/number_of.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMostNames = 1'000'000;

[[noreturn]] void refuse_pattern(const std::string& pattern, const std::string& cause) {
  throw Error(ErrorCode::usage, "data_dir", "'" + pattern.substr(0, 200) + "': " + cause,
              "write name-{000000..000146}.tar");
}

std::vector<std::string> choices(const std::string& pattern, const std::string& group) {
  std::vector<std::string> words;
  if (group.find('{') != std::string::npos) refuse_pattern(pattern, "it has a group within a group");
  const auto dots = group.find("..");
  if (dots == std::string::npos) {
    if (group.find(',') == std::string::npos)
      refuse_pattern(pattern, "{" + group + "} is neither a range of numbers nor a list");
    for (std::size_t begin = 0; begin <= group.size();) {
      const auto end = std::min(group.find(',', begin), group.size());
      words.push_back(group.substr(begin, end - begin));
      begin = end + 1;
    }
    return words;
  }
  const auto first_text = group.substr(0, dots), last_text = group.substr(dots + 2);
  const auto first = number_of<std::uint64_t>(first_text), last = number_of<std::uint64_t>(last_text);
  if (!first || !last || *last < *first) refuse_pattern(pattern, "{" + group + "} is not a range of numbers");
  if (*last - *first >= kMostNames) refuse_pattern(pattern, "{" + group + "} is more than a million names");
  // As the shell and webdataset's braceexpand: a number that begins with 0 makes all as wide as the wider one.
  const bool padded = first_text.starts_with('0') || last_text.starts_with('0');
  const auto width = padded ? std::max(first_text.size(), last_text.size()) : 0;
  for (auto value = *first; value <= *last; ++value) {
    auto text = std::to_string(value);
    if (text.size() < width) text.insert(0, width - text.size(), '0');
    words.push_back(std::move(text));
  }
  return words;
}

}  // namespace

std::vector<std::string> expand_braces(const std::string& pattern) {
  std::vector<std::string> names{""};
  for (std::size_t begin = 0; begin < pattern.size();) {
    const auto open = pattern.find('{', begin);
    for (auto& name : names) name.append(pattern, begin, open == std::string::npos ? open : open - begin);
    if (open == std::string::npos) break;
    const auto close = pattern.find('}', open);
    if (close == std::string::npos) refuse_pattern(pattern, "a { is not closed");
    const auto words = choices(pattern, pattern.substr(open + 1, close - open - 1));
    if (words.size() * names.size() > kMostNames) refuse_pattern(pattern, "it stands for more than a million names");
    std::vector<std::string> longer;
    for (const auto& name : names) {
      for (const auto& word : words) longer.push_back(name + word);
    }
    names = std::move(longer);
    begin = close + 1;
  }
  return names;
}

}  // namespace troupe
