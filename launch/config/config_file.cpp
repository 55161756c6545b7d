#include <toml++/toml.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "launch/config/command_flags.hpp"
#include "launch/config/config.hpp"
#include "launch/config/config_fields.hpp"
#include "launch/process/displayable.hpp"

namespace troupe {
namespace {

constexpr std::uintmax_t kLargest = 1 << 20;

std::string text_of(const toml::node& node, const std::string& where, const std::string& name) {
  if (const auto* value = node.as_string()) return value->get();
  if (const auto* value = node.as_boolean()) return value->get() ? "true" : "false";
  if (const auto* value = node.as_integer()) return std::to_string(value->get());
  if (const auto* value = node.as_floating_point()) {
    std::ostringstream out;
    out.precision(17);
    out << value->get();
    return out.str();
  }
  throw Error(ErrorCode::usage, where, displayable(name) + ": a list, a table or a date is not a valid value");
}

}  // namespace

void read_config_file(Config& config, const std::string& path) {
  std::error_code failure;
  const auto status = std::filesystem::status(path, failure);
  if (!std::filesystem::exists(status)) throw Error(ErrorCode::usage, path, "there is no such config file");
  if (!std::filesystem::is_regular_file(status)) throw Error(ErrorCode::usage, path, "it is not a regular file");
  if (std::filesystem::file_size(path, failure) > kLargest)
    throw Error(ErrorCode::usage, path, "it is larger than 1 MiB, the limit for a config");
  std::ifstream in(path, std::ios::binary);
  std::stringstream content;
  content << in.rdbuf();
  if (!in) throw Error(ErrorCode::usage, path, "it cannot be read");

  toml::table table;
  try {
    table = toml::parse(content.str(), path);
  } catch (const toml::parse_error& error) {
    throw Error(ErrorCode::usage, path + ":" + std::to_string(error.source().begin.line),
                std::string(error.description()));
  }
  for (const auto& [section, node] : table) {
    const auto where = [&](const toml::node& n) { return path + ":" + std::to_string(n.source().begin.line); };
    const std::string section_name(std::string_view(section.str()));
    if (const auto* fields = node.as_table()) {
      bool known = section_name == "program";
      std::vector<std::string> sections{"program"};
      for (const auto& field : config_fields()) {
        known = known || section_name == field.section;
        sections.emplace_back(field.section);
      }
      if (!known) {
        const auto near = nearest_name(section_name, sections);
        throw Error(ErrorCode::usage, where(node), "there is no section [" + displayable(section_name) + "]",
                    near.empty() ? "" : "did you mean [" + near + "]?");
      }
      for (const auto& [key, value] : *fields) {
        const std::string name(std::string_view(key.str()));
        set_config_value(config, section_name + "." + name, text_of(value, where(value), name), where(value));
      }
    } else {
      set_config_value(config, section_name, text_of(node, where(node), section_name), where(node));
    }
  }
}

}  // namespace troupe
