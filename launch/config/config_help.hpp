#pragma once
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "launch/config/config.hpp"
#include "tensor_io/base/registry.hpp"

namespace troupe {

/// The parts of a program's --help besides its settings.
struct HelpOptions {
  std::string program;       ///< as it was started
  std::size_t columns = 80;  ///< no line is longer
  /// Of settings whose values are the names in a registry of a higher folder (strategy): these names.
  std::map<std::string, std::vector<RegisteredName>> names;
};

/// All settings in their sections, with their defaults and the values that they may have.
std::string config_help(const Config& config, const HelpOptions& options);
/// One setting in detail, or a section. Throws Error(usage) with the nearest name for an unknown one.
std::string config_help_on(const Config& config, const std::string& topic, const HelpOptions& options);
/// Throws Error(usage) if a setting in `options.names` has a value that is none of these, with the nearest one.
void check_registered_names(const Config& config, const HelpOptions& options);

/// The page of docs/ that explains a setting; empty: there is none. Its section's, if it has no page to itself.
std::string help_page(const std::string& section, const std::string& name);

}  // namespace troupe
