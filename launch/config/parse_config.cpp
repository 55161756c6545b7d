#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

#include "launch/config/command_flags.hpp"
#include "launch/config/config_fields.hpp"
#include "launch/config/profile_setting.hpp"
#include "launch/config/unread_settings.hpp"
#include "launch/process/displayable.hpp"
#include "launch/process/our_variables.hpp"

namespace troupe {
namespace {

Error wrong(const std::string& source, const std::string& cause, const std::string& remedy = {}) {
  return Error(ErrorCode::usage, source, cause, remedy);
}

// A variable whose name is almost a setting's would be passed over without a word. Others may be anybody's.
void refuse_misspelt_variables(const Config& config) {
  constexpr std::string_view kPrefix = "TROUPE_";
  constexpr std::size_t kShortest = 3, kLong = 6;  // other programs' short names are near ours by chance
  const auto known = setting_names(config);
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto variable = text.substr(0, text.find('='));
    if (!variable.starts_with(kPrefix) || is_our_variable(variable)) continue;
    std::string name(variable.substr(kPrefix.size()));
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    if (name.size() < kShortest || std::find(known.begin(), known.end(), name) != known.end()) continue;
    const auto near = nearest_name(name, known, name.size() < kLong ? 1 : 2);
    if (near.empty()) continue;
    throw wrong(displayable(std::string(variable)), "there is no such setting",
                "did you mean " + variable_of(near) + "?");
  }
}

struct Flag {
  std::string name, value, source;
};

std::string underscored(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

bool is_known(const Config& config, const std::string& name) {
  const auto known = setting_names(config);
  return std::find(known.begin(), known.end(), name) != known.end();
}

bool is_switch(const Config& config, const std::string& name) {
  for (const auto& field : config_fields()) {
    if (name == field.name) return is_switch(field);
  }
  const auto own = config.declared.find(name);
  return own != config.declared.end() && std::holds_alternative<bool>(own->second.value);
}

// --no-NAME, unless a setting's name begins like that.
std::optional<Flag> turned_off(const Config& config, const std::string& word) {
  const auto name = underscored(word.substr(0, word.find('=')));
  if (!name.starts_with("no_") || is_known(config, name)) return std::nullopt;
  const auto source = "--" + displayable(word.substr(0, word.find('=')));
  const auto setting = name.substr(3);
  if (!is_known(config, setting)) {
    const auto near = nearest_name(setting, setting_names(config));
    throw wrong(source, "there is no setting '" + displayable(setting) + "'",
                near.empty() ? "--help lists them" : "did you mean --no-" + near + "?");
  }
  if (!is_switch(config, setting))
    throw wrong(source, setting + " is not a switch, so --no- does not apply",
                "give it a value: --" + setting + " ...");
  if (word.find('=') != std::string::npos)
    throw wrong(source, "the flag takes no value", "write --" + setting + " true or --no-" + setting);
  return Flag{setting, "false", source};
}

}  // namespace

ConfigAction parse_config(Config& config, int argc, const char* const* argv, std::string* help_topic) {
  const auto defaults = config;
  auto action = ConfigAction::run;
  std::vector<Flag> flags;
  std::string file;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--help" || argument == "-h") {
      action = ConfigAction::help;
      if (help_topic != nullptr && i + 1 < argc && argv[i + 1][0] != '-') *help_topic = argv[++i];
      continue;
    }
    if (argument == "--print-config") {
      if (action == ConfigAction::run) action = ConfigAction::print_config;
      continue;
    }
    if (argument.size() < 3 || argument.compare(0, 2, "--") != 0) {
      throw wrong("command line", "'" + displayable(argument) + "' is not a flag", "settings are written --name value");
    }
    std::string name = argument.substr(2), value;
    if (auto off = turned_off(config, name)) {
      flags.push_back(std::move(*off));
      continue;
    }
    if (const auto equals = name.find('='); equals != std::string::npos) {
      value = name.substr(equals + 1);
      name = name.substr(0, equals);
    } else if (is_switch(config, underscored(name)) && (i + 1 >= argc || std::strncmp(argv[i + 1], "--", 2) == 0)) {
      value = "true";
    } else if (i + 1 < argc) {
      value = argv[++i];
    } else {
      throw wrong("--" + displayable(name), "the flag has no value");
    }
    if (name == "config") {
      file = value;
    } else {
      flags.push_back({name, value, "--" + displayable(name)});
    }
  }
  if (!file.empty()) read_config_file(config, file);
  for (const auto& name : setting_names(config)) {
    const auto variable = variable_of(name);
    if (const char* value = std::getenv(variable.c_str())) set_config_value(config, name, value, variable);
  }
  refuse_misspelt_variables(config);
  for (const auto& flag : flags) set_config_value(config, flag.name, flag.value, flag.source);
  if (config.batch_size % (config.grad_accum_steps) != 0) {
    throw wrong("batch_size",
                std::to_string(config.batch_size) + " samples can't be cut into " +
                    std::to_string(config.grad_accum_steps) + " equal micro-batches",
                "make it a multiple of grad_accum_steps");
  }
  if (config.checkpoint_dir.empty() && (config.save_every >= 0 || config.resume == "latest"))
    throw wrong("checkpoint_dir", "it is empty", "name a folder, or save nothing (save_every -1) and leave resume out");
  if (config.validate_only && config.resume.empty() && config.init_from.empty())
    throw wrong("validate_only", "there is no model to evaluate",
                "name one: --resume latest, --resume RUN@STEP, or --init_from FILE");
  if (!config.after_save.empty() && config.save_every < 0)
    throw wrong("after_save", "nothing is saved (save_every -1)",
                "set save_every to 0 or more, or leave after_save out");
  const auto before = config_texts(defaults), now = config_texts(config);
  for (const auto& [name, source] : config.sources) {
    if (before.contains(name) && before.at(name) == now.at(name)) config.as_begun.insert(name);
  }
  refuse_unread(config);
  if (config.run_dir.empty() && profile_setting(config.profile).traces())
    throw wrong("profile", "a trace goes into run_dir, which is empty", "name a folder, or take --profile true");
  return action;
}

}  // namespace troupe
