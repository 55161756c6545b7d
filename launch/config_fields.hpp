#pragma once
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "launch/config.hpp"

namespace troupe {

using ConfigMember = std::variant<bool Config::*, std::int64_t Config::*, std::uint64_t Config::*, double Config::*, std::string Config::*>;

struct ConfigField {
  const char* section;
  const char* name;
  ConfigMember member;
  const char* help;
  double minimum = -std::numeric_limits<double>::infinity();
  double maximum = std::numeric_limits<double>::infinity();
  std::vector<std::string> choices = {};  ///< empty: any string
  bool shared = true;                     ///< must be equal on all ranks: part of the hash
};

/// The one list of settings.
const std::vector<ConfigField>& config_fields();

}  // namespace troupe
