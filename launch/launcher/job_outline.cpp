#include "launch/launcher/job_outline.hpp"

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>
#include <vector>

#include "launch/config/config_fields.hpp"
#include "launch/config/settings_ahead.hpp"
#include "launch/process/displayable.hpp"

namespace troupe {
namespace {

constexpr char kEnd = '\x1f';          // of an entry: ASCII's unit separator
constexpr std::size_t kMost = 60'000;  // what a word of a command line takes

std::map<std::string, std::string> entries_of(const std::string& outline) {
  std::map<std::string, std::string> entries;
  std::istringstream text(outline);
  for (std::string entry; std::getline(text, entry, kEnd);) {
    const auto equals = std::min(entry.find('='), entry.size());
    entries[entry.substr(0, equals)] = entry.substr(std::min(equals + 1, entry.size()));
  }
  return entries;
}

}  // namespace

std::string outline_of(const LauncherOptions& options) {
  std::vector<std::string> names;
  for (const auto& field : config_fields()) {
    if (field.shared && field.name != std::string("run_dir"))
      names.emplace_back(field.name);  // each node may have its own
  }
  auto entries = settings_ahead(options.command, names);
  entries["--nnodes"] = std::to_string(options.nnodes);
  entries["--nproc-per-node"] = std::to_string(options.nproc);
  entries["the program"] = std::filesystem::path(options.command[0]).filename();
  std::string outline;
  for (const auto& [name, value] : entries) outline += name + "=" + value + kEnd;
  std::replace(outline.begin(), outline.end(), '\n', ' ');
  return outline.substr(0, kMost);
}

std::string difference(const std::string& theirs, const std::string& ours) {
  if (theirs.empty() || ours.empty()) return {};
  const auto there = entries_of(theirs), here = entries_of(ours);
  auto all = there;
  all.insert(here.begin(), here.end());
  const auto shown = [](const auto& entries, const std::string& name) {
    const auto found = entries.find(name);
    return found == entries.end() ? "not given" : "'" + displayable(found->second) + "'";
  };
  for (const auto& [name, value] : all) {
    const auto a = shown(there, name), b = shown(here, name);
    if (a != b) return displayable(name) + " is " + a + " there and " + b + " here";
  }
  return {};
}

}  // namespace troupe
