#pragma once
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "launch/config/config.hpp"
#include "tensor_io/base/registry.hpp"

namespace troupe {

using ConfigMember = std::variant<bool Config::*, std::int64_t Config::*, std::uint64_t Config::*, double Config::*,
                                  std::string Config::*>;

struct ConfigField {
  const char* section;
  const char* name;
  ConfigMember member;
  const char* help;
  double minimum = -std::numeric_limits<double>::infinity();
  double maximum = std::numeric_limits<double>::infinity();
  std::vector<std::string> choices = {};                    ///< empty: any string, or the registered names
  bool shared = true;                                       ///< must be equal on all ranks: part of the hash
  bool may_stand_alone = false;                             ///< a text whose flag without a value means `true`
  const char* form = nullptr;                               ///< of a text, if it is limited
  std::string (*check)(const std::string& text) = nullptr;  ///< of a text: the mistake in it, or nothing
  std::vector<RegisteredName> (*registered)() = nullptr;    ///< of a text: its values are the names in a registry
};

/// The values that a text may have now, in the order of the help: `choices`, or the registered names. Empty: any
/// text.
std::vector<std::string> choices_of(const ConfigField& field);

/// The values that a field may have, as a noun: `one of sgd, adamw`, `a number from 0 to 1`.
std::string allowed_values(const ConfigField& field);
/// A switch, or a text whose flag may stand alone: --no-NAME turns it off.
bool is_switch(const ConfigField& field);

/// All settings, with the program's.
std::vector<std::string> setting_names(const Config& config);
/// TROUPE_LR, of lr.
std::string variable_of(const std::string& name);

/// The one list of settings.
const std::vector<ConfigField>& config_fields();

}  // namespace troupe
