#include "launch/config/config.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "launch/config/command_flags.hpp"
#include "launch/config/config_fields.hpp"
#include "launch/config/profile_setting.hpp"
#include "launch/process/displayable.hpp"
#include "launch/process/our_variables.hpp"

namespace troupe {
namespace {

Error wrong(const std::string& source, const std::string& name, const std::string& cause,
            const std::string& remedy = {}) {
  // `--lr: lr: ...` would say it twice.
  const bool named = name.empty() || source == "--" + name || source == variable_of(name);
  return Error(ErrorCode::usage, source, named ? cause : name + ": " + cause, remedy);
}

std::string number(double value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end);
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
  return std::visit(Assign{config, field, text, "'" + displayable(text, 80) + "' is not " + allowed_values(field)},
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

}  // namespace

std::string allowed_values(const ConfigField& field) {
  if (const auto choices = choices_of(field); !choices.empty()) {
    std::string list;
    for (const auto& choice : choices) list += (list.empty() ? "" : ", ") + choice;
    return "one of " + list;
  }
  struct Visitor {
    const ConfigField& field;
    std::string operator()(bool Config::*) const { return "true or false"; }
    std::string operator()(std::string Config::*) const { return field.form == nullptr ? "text" : field.form; }
    std::string range(const std::string& what) const {
      const bool bounded = std::isfinite(field.maximum) && field.maximum < 1e15;
      if (!std::isfinite(field.minimum)) return what + (bounded ? " of at most " + number(field.maximum) : "");
      return bounded ? what + (" from " + number(field.minimum)) + " to " + number(field.maximum)
                     : what + (" of at least " + number(field.minimum));
    }
    std::string operator()(std::int64_t Config::*) const { return range("a whole number"); }
    std::string operator()(std::uint64_t Config::*) const { return range("a whole number"); }
    std::string operator()(double Config::*) const { return range("a number"); }
  };
  return std::visit(Visitor{field}, field.member);
}

std::string variable_of(const std::string& name) {
  std::string variable = "TROUPE_" + name;
  std::transform(variable.begin(), variable.end(), variable.begin(), [](unsigned char c) { return std::toupper(c); });
  return variable;
}

std::vector<std::string> setting_names(const Config& config) {
  std::vector<std::string> names;
  for (const auto& field : config_fields()) names.emplace_back(field.name);
  for (const auto& [name, declared] : config.declared) names.push_back(name);
  return names;
}

bool is_switch(const ConfigField& field) {
  return std::holds_alternative<bool Config::*>(field.member) || field.may_stand_alone;
}

void Config::declare(const std::string& name, ConfigValue default_value, const std::string& help) {
  for (const auto& field : config_fields()) {
    if (name == field.name)
      throw Error(ErrorCode::usage, "config.declare", "'" + name + "' is one of Troupe's own settings",
                  "choose another name");
  }
  if (is_our_variable(variable_of(name)))
    throw Error(ErrorCode::usage, "config.declare", "the launcher already uses " + variable_of(name),
                "choose another name than '" + name + "'");
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
    const auto near = nearest_name(bare, setting_names(config));
    throw wrong(source, "", "there is no setting '" + displayable(name) + "'",
                near.empty() ? "--help lists them" : "did you mean " + near + "?");
  }
  if (!problem.empty()) throw wrong(source, bare, problem);
  config.sources[bare] = source;
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
    text += std::string("| `") + field.name + "` | `" + json_of(defaults, field).dump() + "` | " +
            allowed_values(field) + " | " + field.help + (field.shared ? "" : " (may differ between ranks)") + " |\n";
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
