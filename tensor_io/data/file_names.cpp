#include "tensor_io/data/file_names.hpp"

#include <algorithm>
#include <cctype>
#include <map>
#include <string_view>

namespace troupe {
namespace {

constexpr std::string_view kBetween = "-._ 0123456789";

}  // namespace

std::string in_small_letters(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

PartName part_named(const std::string& name) {
  static const std::map<std::string, PartName> parts{
      {"train", PartName::train},      {"training", PartName::train}, {"validation", PartName::validation},
      {"valid", PartName::validation}, {"val", PartName::validation}, {"dev", PartName::validation},
      {"test", PartName::test},        {"testing", PartName::test},   {"eval", PartName::test},
      {"evaluation", PartName::test}};
  const auto found = parts.find(in_small_letters(name));
  return found == parts.end() ? PartName::none : found->second;
}

PartName part_in_name(const std::string& name) {
  for (std::size_t begin = 0; begin < name.size();) {
    const auto end = std::min(name.find_first_of(kBetween, begin), name.size());
    if (const auto part = part_named(name.substr(begin, end - begin)); part != PartName::none) return part;
    begin = end + 1;
  }
  return PartName::none;
}

}  // namespace troupe
