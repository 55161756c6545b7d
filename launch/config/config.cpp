#include "launch/config/config.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

#include "launch/config/command_flags.hpp"
#include "launch/config/config_fields.hpp"
#include "launch/config/profile_setting.hpp"
#include "launch/process/displayable.hpp"

namespace troupe {
namespace {

Error wrong(const std::string& source, const std::string& name, const std::string& cause,
            const std::string& remedy = {}) {
  return Error(ErrorCode::usage, source, name.empty() ? cause : name + ": " + cause, remedy);
}

std::string number(double value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end);
}

std::string allowed(const ConfigField& field) {
  if (const auto choices = choices_of(field); !choices.empty()) {
    std::string list;
    for (const auto& choice : choices) list += (list.empty() ? "" : ", ") + choice;
    return "one of " + list;
  }
  struct Visitor {
    const ConfigField& field;
    std::string operator()(bool Config::*) const { return "true or false"; }
    std::string operator()(std::string Config::*) const { return field.form == nullptr ? "text" : field.form; }
    std::string range(const char* what) const {
      std::string text = what;
      if (std::isfinite(field.minimum)) text += ", at least " + number(field.minimum);
      if (std::isfinite(field.maximum) && field.maximum < 1e15) text += ", at most " + number(field.maximum);
      return text;
    }
    std::string operator()(std::int64_t Config::*) const { return range("a whole number"); }
    std::string operator()(std::uint64_t Config::*) const { return range("a whole number"); }
    std::string operator()(double Config::*) const { return range("a number"); }
  };
  return std::visit(Visitor{field}, field.member);
}

// Settings travel, and are kept, as JSON.
std::string problem_of_text(const std::string& text) {
  if (text.find('\0') != std::string::npos) return "the text holds a NUL byte";
  try {
    (void)nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    return "'" + displayable(text, 80) + "' is not UTF-8; give the file or folder a name in UTF-8";
  }
  return "";
}

template <class T>
bool parse_number(const std::string& text, T& value) {
  const char* begin = text.c_str();
  if (*begin == '+') ++begin;
  const auto [end, error] = std::from_chars(begin, text.c_str() + text.size(), value);
  return error == std::errc() && end == text.c_str() + text.size() && begin != end;
}

struct Assign {
  Config& config;
  const ConfigField& field;
  const std::string& text;
  std::string refused;

  std::string operator()(bool Config::*member) const { return parse_switch(text, config.*member) ? "" : refused; }
  std::string operator()(std::string Config::*member) const {
    const auto choices = choices_of(field);
    if (!choices.empty() && std::find(choices.begin(), choices.end(), text) == choices.end()) {
      const auto near = nearest_name(text, choices);
      return refused + (near.empty() ? "" : "; did you mean " + near + "?");
    }
    if (auto problem = problem_of_text(text); !problem.empty()) return problem;
    if (field.check != nullptr) {
      if (auto problem = field.check(text); !problem.empty()) return problem;
    }
    config.*member = text;
    return "";
  }
  template <class T>
  std::string operator()(T Config::*member) const {
    T value{};
    if (!parse_number(text, value)) return refused;
    const auto number = static_cast<double>(value);
    if (!std::isfinite(number) || number < field.minimum || number > field.maximum) return refused;
    config.*member = value;
    return "";
  }
};

// Sets the member; says nothing, or what is wrong.
std::string assign(Config& config, const ConfigField& field, const std::string& text) {
  return std::visit(Assign{config, field, text, "'" + displayable(text, 80) + "' is not " + allowed(field)},
                    field.member);
}

std::string assign_declared(ConfigValue& value, const std::string& text) {
  struct Visitor {
    const std::string& text;
    const std::string refused = "'" + displayable(text, 80) + "' is not ";
    std::string operator()(bool& v) const { return parse_switch(text, v) ? "" : refused + "true or false"; }
    std::string operator()(std::int64_t& v) const { return parse_number(text, v) ? "" : refused + "a whole number"; }
    std::string operator()(double& v) const {
      return parse_number(text, v) && std::isfinite(v) ? "" : refused + "a number";
    }
    std::string operator()(std::string& v) const {
      auto problem = problem_of_text(text);
      if (problem.empty()) v = text;
      return problem;
    }
  };
  return std::visit(Visitor{text}, value);
}

nlohmann::json json_of(const Config& config, const ConfigField& field) {
  return std::visit([&](auto member) { return nlohmann::json(config.*member); }, field.member);
}

nlohmann::json json_of(const ConfigValue& value) {
  return std::visit([](const auto& v) { return nlohmann::json(v); }, value);
}

std::vector<std::string> known_names(const Config& config) {
  std::vector<std::string> names;
  for (const auto& field : config_fields()) names.emplace_back(field.name);
  for (const auto& [name, declared] : config.declared) names.push_back(name);
  return names;
}

}  // namespace

void Config::declare(const std::string& name, ConfigValue default_value, const std::string& help) {
  for (const auto& field : config_fields()) {
    if (name == field.name)
      throw Error(ErrorCode::usage, "config.declare", "'" + name + "' is one of Troupe's own settings",
                  "choose another name");
  }
  declared[name] = {help, std::move(default_value)};
}

const ConfigValue& Config::own(const std::string& name) const {
  const auto found = declared.find(name);
  if (found == declared.end())
    throw Error(ErrorCode::usage, "config.get", "'" + name + "' was not declared",
                "call config.declare in job.declare");
  return found->second.value;
}

void set_config_value(Config& config, const std::string& name, const std::string& text, const std::string& source) {
  std::string bare = name;
  std::replace(bare.begin(), bare.end(), '-', '_');
  std::string section;
  if (const auto dot = bare.find('.'); dot != std::string::npos) {
    section = bare.substr(0, dot);
    bare = bare.substr(dot + 1);
  }
  std::string problem;
  bool found = false;
  for (const auto& field : config_fields()) {
    if (bare != field.name || (!section.empty() && section != field.section)) continue;
    found = true;
    problem = assign(config, field, text);
  }
  if (const auto own = config.declared.find(bare);
      !found && own != config.declared.end() && (section.empty() || section == "program")) {
    found = true;
    problem = assign_declared(own->second.value, text);
  }
  if (!found) {
    const auto near = nearest_name(bare, known_names(config));
    throw wrong(source, "", "there is no setting '" + displayable(name) + "'",
                near.empty() ? "--help lists them" : "did you mean " + near + "?");
  }
  if (!problem.empty()) throw wrong(source, bare, problem);
  config.sources[bare] = source;
}

// A variable whose name is almost a setting's would be passed over without a word. Others may be anybody's.
static void refuse_misspelt_variables(const Config& config) {
  constexpr std::string_view kPrefix = "TROUPE_";
  constexpr std::size_t kShortest = 6, kMostTypos = 2;
  const auto known = known_names(config);
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto variable = text.substr(0, text.find('='));
    if (!variable.starts_with(kPrefix)) continue;
    std::string name(variable.substr(kPrefix.size()));
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    if (name.size() < kShortest || std::find(known.begin(), known.end(), name) != known.end()) continue;
    auto near = nearest_name(name, known, kMostTypos);
    if (near.empty()) continue;
    std::transform(near.begin(), near.end(), near.begin(), [](unsigned char c) { return std::toupper(c); });
    throw wrong(displayable(std::string(variable)), "", "there is no such setting",
                "did you mean TROUPE_" + near + "?");
  }
}

ConfigAction parse_config(Config& config, int argc, const char* const* argv) {
  auto action = ConfigAction::run;
  struct Flag {
    std::string name, value;
  };
  std::vector<Flag> flags;
  std::string file;
  const auto is_switch = [&](std::string name) {
    std::replace(name.begin(), name.end(), '-', '_');
    for (const auto& field : config_fields()) {
      if (name == field.name) return std::holds_alternative<bool Config::*>(field.member) || field.may_stand_alone;
    }
    const auto own = config.declared.find(name);
    return own != config.declared.end() && std::holds_alternative<bool>(own->second.value);
  };
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--help" || argument == "-h") {
      action = ConfigAction::help;
      continue;
    }
    if (argument == "--print-config") {
      if (action == ConfigAction::run) action = ConfigAction::print_config;
      continue;
    }
    if (argument.size() < 3 || argument.compare(0, 2, "--") != 0) {
      throw wrong("command line", "", "'" + displayable(argument) + "' is no flag",
                  "settings are written --name value");
    }
    std::string name = argument.substr(2), value;
    if (const auto equals = name.find('='); equals != std::string::npos) {
      value = name.substr(equals + 1);
      name = name.substr(0, equals);
    } else if (is_switch(name) && (i + 1 >= argc || std::strncmp(argv[i + 1], "--", 2) == 0)) {
      value = "true";
    } else if (i + 1 < argc) {
      value = argv[++i];
    } else {
      throw wrong("--" + displayable(name), "", "the flag has no value");
    }
    if (name == "config") {
      file = value;
    } else {
      flags.push_back({name, value});
    }
  }
  if (!file.empty()) read_config_file(config, file);
  for (const auto& name : known_names(config)) {
    std::string variable = "TROUPE_" + name;
    std::transform(variable.begin(), variable.end(), variable.begin(), [](unsigned char c) { return std::toupper(c); });
    if (const char* value = std::getenv(variable.c_str())) set_config_value(config, name, value, variable);
  }
  refuse_misspelt_variables(config);
  for (const auto& flag : flags) set_config_value(config, flag.name, flag.value, "--" + displayable(flag.name));
  if (config.batch_size % (config.grad_accum_steps) != 0) {
    throw wrong("config", "batch_size",
                std::to_string(config.batch_size) + " samples can't be cut into " +
                    std::to_string(config.grad_accum_steps) + " equal micro-batches",
                "make it a multiple of grad_accum_steps");
  }
  if (config.checkpoint_dir.empty() && (config.save_every >= 0 || config.resume == "latest"))
    throw wrong("config", "checkpoint_dir", "it is empty",
                "name a folder, or leave saving (save_every -1) and resume out");
  if (config.validate_only && config.resume.empty() && config.init_from.empty())
    throw wrong("config", "validate_only", "there is no model to evaluate",
                "name one: --resume latest, --resume RUN@STEP, or --init_from FILE");
  if (config.run_dir.empty() && profile_setting(config.profile).traces())
    throw wrong("config", "profile", "a trace goes into run_dir, which is empty",
                "name a folder, or take --profile true");
  return action;
}

std::string config_help(const Config& config, const std::string& program) {
  std::string text = "usage: " + program + " [--config FILE.toml] [--name value ...]\n       troupe launch --nproc N " +
                     program + " [--name value ...]\n\nexample: " + program + " --lr 0.05 --epochs 3 --ranks 2\n";
  std::string section;
  const Config defaults;
  for (const auto& field : config_fields()) {
    if (section != field.section) text += "\n[" + (section = field.section) + "]\n";
    std::string left = std::string("  --") + field.name + " " + json_of(defaults, field).dump();
    left.resize(std::max<std::size_t>(left.size() + 1, 38), ' ');
    text += left + field.help + "\n";
    if (field.registered == nullptr) continue;
    for (const auto& [name, description] : field.registered()) {
      std::string line = std::string(40, ' ') + name;
      line.resize(std::max<std::size_t>(line.size() + 1, 54), ' ');
      text += line + description + "\n";
    }
  }
  if (!config.declared.empty()) text += "\n[program]\n";
  for (const auto& [name, declared] : config.declared) {
    std::string left = "  --" + name + " " + json_of(declared.value).dump();
    left.resize(std::max<std::size_t>(left.size() + 1, 38), ' ');
    text += left + declared.help + "\n";
  }
  return text + "\nother: --help, --print-config (the merged settings as TOML, and where each came from)\n";
}

// A value of JSON is one of TOML, but for DEL, which JSON leaves as it is.
static std::string toml_of(const nlohmann::json& value) {
  auto text = value.dump();
  for (auto at = text.find('\x7f'); at != std::string::npos; at = text.find('\x7f', at)) text.replace(at, 1, "\\u007f");
  return text;
}

std::string config_to_toml(const Config& config) {
  std::string text, section;
  const auto line = [&](const std::string& name, const std::string& value) {
    const auto source = config.sources.find(name);
    text +=
        name + " = " + value + (source == config.sources.end() ? "  # default" : "  # from " + source->second) + "\n";
  };
  for (const auto& field : config_fields()) {
    if (section != field.section)
      text += std::string(section.empty() ? "" : "\n") + "[" + (section = field.section) + "]\n";
    line(field.name, toml_of(json_of(config, field)));
  }
  if (!config.declared.empty()) text += "\n[program]\n";
  for (const auto& [name, declared] : config.declared) line(name, toml_of(json_of(declared.value)));
  return text;
}

namespace {

nlohmann::json json_of(const Config& config) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& field : config_fields()) json[field.name] = json_of(config, field);
  for (const auto& [name, declared] : config.declared) json[name] = json_of(declared.value);
  return json;
}

}  // namespace

std::string config_to_json(const Config& config) { return json_of(config).dump(); }

std::map<std::string, std::string> config_texts(const Config& config) {
  std::map<std::string, std::string> texts;
  const auto json = json_of(config);
  for (const auto& [name, value] : json.items())
    texts[name] = value.is_string() ? value.get<std::string>() : value.dump();
  return texts;
}

std::string config_reference() {
  const Config defaults;
  std::string text =
      "# Config reference\n\nGenerated from the list of settings in `launch/config/config_fields.cpp`; `troupe config "
      "reference` prints it.\n"
      "A setting is written in a TOML file under its section (`--config FILE`), as an environment variable "
      "(`TROUPE_LR`), or as a flag\n"
      "(`--lr 0.1`); the later one wins.\n";
  std::string section;
  for (const auto& field : config_fields()) {
    if (section != field.section)
      text += "\n## [" + (section = field.section) + "]\n\n| name | default | allowed | meaning |\n|---|---|---|---|\n";
    text += std::string("| `") + field.name + "` | `" + json_of(defaults, field).dump() + "` | " + allowed(field) +
            " | " + field.help + (field.shared ? "" : " (may differ between ranks)") + " |\n";
  }
  return text;
}

std::string config_hash(const Config& config) {
  std::uint64_t hash = 1469598103934665603ull;
  const auto mix = [&hash](const std::string& text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
    hash = (hash ^ 0xff) * 1099511628211ull;
  };
  for (const auto& field : config_fields()) {
    if (!field.shared) continue;
    mix(field.name);
    mix(json_of(config, field).dump());
  }
  for (const auto& [name, declared] : config.declared) mix(name), mix(json_of(declared.value).dump());
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

}  // namespace troupe
