#include "launch/config/config_help.hpp"

#include <algorithm>
#include <utility>

#include "launch/config/config_fields.hpp"
#include "launch/process/displayable.hpp"
#include "launch/process/wrapped_text.hpp"
#include "tensor_io/base/nearest_name.hpp"

namespace troupe {
namespace {

constexpr std::size_t kIndent = 28;  // of the texts in the list
constexpr const char* kOwn = "program";

// A setting as the help sees it: a field, or one that the program declared.
struct Entry {
  std::string section, name, text, default_value, allowed;
  bool is_switch = false;
  bool quoted = false;  // in a file
  bool shared = true;
  std::vector<RegisteredName> values;  // that it may have, if they can be counted
};

std::vector<RegisteredName> values_of(const ConfigField& field, const HelpOptions& options) {
  if (const auto found = options.names.find(field.name); found != options.names.end()) return found->second;
  if (field.registered != nullptr) return field.registered();
  std::vector<RegisteredName> values;
  for (const auto& choice : field.choices) values.push_back({choice, {}});
  return values;
}

std::vector<Entry> entries_of(const Config& config, const HelpOptions& options) {
  // A setting that nothing has set is as the program wants it.
  Config defaults;
  defaults.declared = config.declared;
  auto texts = config_texts(defaults);
  for (const auto& [name, text] : config_texts(config)) {
    if (!config.sources.contains(name)) texts[name] = text;
  }
  std::vector<Entry> entries;
  for (const auto& field : config_fields()) {
    Entry entry{field.section, field.name, field.help, texts.at(field.name), allowed_values(field)};
    entry.is_switch = is_switch(field);
    entry.quoted = std::holds_alternative<std::string Config::*>(field.member);
    entry.shared = field.shared;
    entry.values = values_of(field, options);
    entries.push_back(std::move(entry));
  }
  for (const auto& [name, declared] : config.declared) {
    Entry entry{kOwn, name, declared.help, texts.at(name), {}};
    entry.is_switch = std::holds_alternative<bool>(declared.value);
    entry.quoted = std::holds_alternative<std::string>(declared.value);
    const char* kinds[] = {"true or false", "a whole number", "a number", "text"};
    entry.allowed = kinds[declared.value.index()];
    entries.push_back(std::move(entry));
  }
  return entries;
}

bool has_form(const std::string& name) {
  for (const auto& field : config_fields()) {
    if (name == field.name) return field.form != nullptr;
  }
  return false;
}

std::string shown(const std::string& value) { return value.empty() ? "''" : value; }

std::string line_of(const Entry& entry, std::size_t columns) {
  const bool boolean = entry.default_value == "true" || entry.default_value == "false";
  const auto lead = "  --" + entry.name + (boolean ? ", --no-" + entry.name : " " + shown(entry.default_value));
  auto text = entry.text;
  if (boolean) text += entry.default_value == "true" ? " (on)" : " (off)";
  if (!entry.values.empty()) {
    text += "; " + name_list(entry.values, " or ");
  } else if (has_form(entry.name)) {
    text += "; " + entry.allowed;
  }
  return wrapped(lead, kIndent, text, columns);
}

std::string list_of(const std::vector<Entry>& entries, std::size_t columns) {
  std::string text, section;
  for (const auto& entry : entries) {
    if (section != entry.section) text += (text.empty() ? "[" : "\n[") + (section = entry.section) + "]\n";
    text += line_of(entry, columns);
  }
  return text;
}

// A path that is long would push the rest of its line out of sight.
std::string short_program(const std::string& program) {
  constexpr std::size_t kLong = 30;
  return program.size() <= kLong ? program : program.substr(program.rfind('/') + 1);
}

bool is_setting(const Config& config, const std::string& name) {
  const auto names = setting_names(config);
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string values_in_detail(const Entry& entry, std::size_t columns) {
  constexpr std::size_t kColumn = 15, kDescription = 34;
  std::string text;
  for (const auto& [name, description] : entry.values) {
    const auto lead = std::string(kColumn, ' ') + name;
    text +=
        description.empty() ? wrapped({}, kColumn, name, columns) : wrapped(lead, kDescription, description, columns);
  }
  return text;
}

std::string detail_of(const Entry& entry, const Config& config, std::size_t columns) {
  constexpr std::size_t kColumn = 15;
  const auto row = [&](const std::string& what, const std::string& text) {
    return wrapped("  " + what, kColumn, text, columns);
  };
  auto text = wrapped({}, 0, "--" + entry.name + (entry.is_switch ? ", --no-" + entry.name : ""), columns) + "\n";
  text += wrapped({}, 2, entry.text, columns) + "\n";
  text += row("default", shown(entry.default_value));
  if (const auto source = config.sources.find(entry.name); source != config.sources.end())
    text += row("now", shown(config_texts(config).at(entry.name)) + ", from " + source->second);
  if (entry.values.empty()) {
    text += row("allowed", entry.allowed);
  } else {
    text += row("allowed", "one of") + values_in_detail(entry, columns);
  }
  text += row("environment", variable_of(entry.name));
  const auto quote = entry.quoted ? "\"" : "";
  text += row("file", entry.name + " = " + quote + entry.default_value + quote + ", under [" + entry.section + "]");
  const bool ambiguous = is_setting(config, entry.section);
  text += row("section", "--help " + (ambiguous ? "'[" + entry.section + "]'" : entry.section) + " lists its settings");
  text += row("ranks", entry.shared ? "it is the same on all ranks" : "it may differ between ranks");
  if (const auto page = help_page(entry.section, entry.name); !page.empty())
    text += row("read", page + "; installed: share/doc/troupe");
  return text;
}

}  // namespace

std::string help_page(const std::string& section, const std::string& name) {
  static const std::map<std::string, std::string> settings{
      {"backend", "docs/write_a_communicator.md"},
      {"balance", "docs/strategies.md"},
      {"bind_cpus", "docs/gpu.md"},
      {"chaos", "docs/faults.md"},
      {"collective_timeout", "docs/survive_failures.md"},
      {"cuda_graphs", "docs/gpu.md"},
      {"deferred_init", "docs/sharded_training.md"},
      {"device", "docs/gpu.md"},
      {"nvtx", "docs/observe.md"},
      {"on_not_finite", "docs/troubleshooting.md"},
      {"profile", "docs/observe.md"},
      {"ranks", "docs/testing.md"},
      {"run_dir", "docs/observe.md"},
      {"share_device", "docs/gpu.md"},
      {"tf32", "docs/gpu.md"},
      {"cudnn_benchmark", "docs/gpu.md"},
      {"snapshot_every", "docs/sharded_training.md"},
      {"verify_every", "docs/strategies.md"},
      {"vote", "docs/gpu.md"},
  };
  static const std::map<std::string, std::string> sections{
      {"checkpoint", "docs/checkpoints.md"}, {"data", "docs/data.md"},
      {"observe", "docs/observe.md"},        {"optimizer", "docs/writing_a_model.md"},
      {"strategy", "docs/strategies.md"},    {"training", "docs/writing_a_model.md"},
      {"run", "docs/first_run.md"},
  };
  if (name.starts_with("fsdp_")) return "docs/sharded_training.md";
  if (const auto found = settings.find(name); found != settings.end()) return found->second;
  const auto found = sections.find(section);
  return found == sections.end() ? std::string() : found->second;
}

std::string config_help(const Config& config, const HelpOptions& options) {
  const auto program = short_program(options.program);
  auto text = wrapped({}, 0, "usage: " + program + " [--config FILE.toml] [--name value ...]", options.columns) +
              wrapped({}, 7, "troupe launch --nproc N " + program + " [--name value ...]", options.columns) + "\n" +
              wrapped({}, 0, "example: " + program + " --lr 0.05 --epochs 3 --ranks 2", options.columns) + "\n" +
              list_of(entries_of(config, options), options.columns) + "\n[other]\n";
  text += wrapped("  --help NAME", kIndent, "a setting in detail, or a section", options.columns);
  text += wrapped("  --config FILE", kIndent, "settings as TOML; the environment (TROUPE_LR) and flags take precedence",
                  options.columns);
  return text +
         wrapped("  --print-config", kIndent, "the merged settings as TOML, and where each came from", options.columns);
}

std::string config_help_on(const Config& config, const std::string& topic, const HelpOptions& options) {
  // data, optimizer and strategy are settings and sections; [data] is the section.
  const bool section_alone = topic.starts_with('[') && topic.ends_with(']');
  auto name = section_alone ? topic.substr(1, topic.size() - 2) : topic;
  while (name.starts_with('-')) name.erase(0, 1);
  std::replace(name.begin(), name.end(), '-', '_');
  const auto entries = entries_of(config, options);
  std::vector<std::string> known;
  std::vector<Entry> section;
  for (const auto& entry : entries) {
    if (entry.name == name && !section_alone) return detail_of(entry, config, options.columns);
    if (entry.section == name) section.push_back(entry);
    known.insert(known.end(), {entry.name, entry.section});
  }
  if (!section.empty()) {
    auto text = list_of(section, options.columns);
    if (const auto page = help_page(name, {}); !page.empty())
      text += "\n" + wrapped("  read", kIndent, page, options.columns);
    return text;
  }
  const auto near = nearest_name(name, known);
  throw Error(ErrorCode::usage, "--help", "there is no setting or section '" + displayable(topic) + "'",
              near.empty() ? "--help lists them" : "did you mean " + near + "?");
}

void check_registered_names(const Config& config, const HelpOptions& options) {
  const auto texts = config_texts(config);
  for (const auto& [setting, names] : options.names) {
    const auto& value = texts.at(setting);
    if (std::any_of(names.begin(), names.end(), [&](const RegisteredName& known) { return known.name == value; }))
      continue;
    const auto source = config.sources.find(setting);
    const auto where = source == config.sources.end() ? setting : source->second;
    const bool named = where == setting || where == "--" + setting || where == variable_of(setting);
    throw Error(ErrorCode::usage, where,
                (named ? "" : setting + ": ") + "'" + displayable(value) + "' is not known to this program",
                remedy_for_name(value, names));
  }
}

}  // namespace troupe
