#include "tensor_io/data/file_names.hpp"

#include <algorithm>
#include <cctype>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {
namespace {

constexpr std::size_t kMostKinds = 4, kLongestKind = 12;
constexpr std::string_view kBetween = "-._ 0123456789";

std::string kind_of(const std::string& path) {
  const auto name = path.substr(path.rfind('/') + 1);
  if (name.starts_with(".")) return "hidden";
  const auto dot = name.rfind('.');
  if (dot == std::string::npos || name.size() - dot > kLongestKind) return "without extension";
  std::string kind;
  for (const char c : name.substr(dot)) {
    const auto letter = static_cast<unsigned char>(c);
    kind += std::isprint(letter) != 0 ? static_cast<char>(std::tolower(letter)) : '?';
  }
  return kind;
}

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

void PassedOver::add(const std::string& name) { ++kinds_[kind_of(name)]; }

void PassedOver::add_all(const PassedOver& other) {
  for (const auto& [kind, count] : other.kinds_) kinds_[kind] += count;
}

std::int64_t PassedOver::count() const {
  std::int64_t sum = 0;
  for (const auto& [kind, count] : kinds_) sum += count;
  return sum;
}

std::int64_t PassedOver::count(std::initializer_list<const char*> kinds) const {
  std::int64_t sum = 0;
  for (const char* kind : kinds) {
    if (const auto found = kinds_.find(kind); found != kinds_.end()) sum += found->second;
  }
  return sum;
}

std::string PassedOver::to_string() const {
  const auto all = count();
  if (all == 0) return {};
  std::vector<std::pair<std::string, std::int64_t>> kinds(kinds_.begin(), kinds_.end());
  std::stable_sort(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text = std::to_string(all) + (all == 1 ? " file" : " files") + " passed over (";
  for (std::size_t i = 0; i < std::min(kMostKinds, kinds.size()); ++i)
    text += (i == 0 ? "" : ", ") + kinds[i].first + " " + std::to_string(kinds[i].second);
  return text + (kinds.size() > kMostKinds ? ", ...)" : ")");
}

}  // namespace troupe
