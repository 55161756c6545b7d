#include "launch/config/settings_ahead.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include <toml++/toml.h>

#include "launch/config/config_fields.hpp"

namespace troupe {
namespace {

constexpr std::string_view kFile = "config";

// A flag's name without dashes and section: --run-dir, --run_dir and --run.run_dir are one.
std::string bare(std::string name) {
  name = name.substr(2);
  if (const auto dot = name.find('.'); dot != std::string::npos) name = name.substr(dot + 1);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// A switch may have no value.
bool is_switch(const std::string& name) {
  for (const auto& field : config_fields()) {
    if (name == field.name) return std::holds_alternative<bool Config::*>(field.member);
  }
  return false;
}

std::map<std::string, std::string> flags_of(const std::vector<std::string>& command) {
  std::map<std::string, std::string> flags;
  for (std::size_t i = 1; i < command.size(); ++i) {
    const auto& word = command[i];
    if (!word.starts_with("--")) continue;
    if (const auto equals = word.find('='); equals != std::string::npos) {
      flags[bare(word.substr(0, equals))] = word.substr(equals + 1);
    } else if (i + 1 < command.size() && !command[i + 1].starts_with("--")) {
      flags[bare(word)] = command[i + 1];
    } else if (const auto name = bare(word); is_switch(name)) {
      flags[name] = "true";
    }
  }
  return flags;
}

void add(std::map<std::string, std::string>& found, const std::vector<std::string>& names, std::string_view name,
         const toml::node& node) {
  if (std::find(names.begin(), names.end(), name) == names.end()) return;
  std::ostringstream text;
  node.visit([&](const auto& value) {
    if constexpr (toml::is_value<decltype(value)>) text << std::boolalpha << value.get();
  });
  if (node.is_value()) found[std::string(name)] = text.str();
}

std::map<std::string, std::string> settings_in_file(const std::string& path, const std::vector<std::string>& names) {
  std::map<std::string, std::string> found;
  std::error_code unknown;
  if (!std::filesystem::is_regular_file(path, unknown)) return found;  // a pipe would wait for its writer
  try {
    for (const auto& [key, node] : toml::parse_file(path)) {
      if (const auto* section = node.as_table()) {
        for (const auto& [name, value] : *section) add(found, names, name.str(), value);
      } else {
        add(found, names, key.str(), node);
      }
    }
  } catch (const toml::parse_error&) {
    return {};
  }
  return found;
}

}  // namespace

std::map<std::string, std::string> settings_ahead(const std::vector<std::string>& command,
                                                  const std::vector<std::string>& names) {
  const auto flags = flags_of(command);
  const auto file = flags.find(std::string(kFile));
  auto found = file == flags.end() ? std::map<std::string, std::string>() : settings_in_file(file->second, names);
  for (const auto& name : names) {
    std::string variable = "TROUPE_" + name;
    std::transform(variable.begin(), variable.end(), variable.begin(), [](unsigned char c) { return std::toupper(c); });
    if (const char* value = std::getenv(variable.c_str())) found[name] = value;
    if (const auto flag = flags.find(name); flag != flags.end()) found[name] = flag->second;
  }
  return found;
}

}  // namespace troupe
