#include "launch/hosts/ssh_command.hpp"

#include <algorithm>
#include <array>

#include "launch/process/displayable.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

[[noreturn]] void refuse(const std::string& what, const std::string& cause, const std::string& remedy) {
  throw Error(ErrorCode::usage, what, cause, remedy);
}

void refuse_secret(const std::string& variable) {
  if (!looks_secret(variable)) return;
  refuse("environment variable " + variable,
         "its name looks like a secret, and every user of a host can read a command line",
         "set it in the host's own environment, or read it from a file there");
}

// No shell language, so that csh and fish read the same.
std::string remote_text(const std::vector<std::string>& command, const SshOptions& options) {
  std::string text;
  if (const auto& folder = options.working_directory; !folder.empty()) {
    if (folder.front() != '/')
      refuse("working directory", "'" + displayable(folder) + "' is not absolute",
             "a folder on the host begins with '/'");
    text += "cd " + quote_for_shell(folder) + " && ";
  }
  text += "exec env";
  for (const auto& [name, value] : options.environment) {
    if (name.empty() || is_digit(name.front()) ||
        !std::all_of(name.begin(), name.end(), [](char c) { return is_letter(c) || is_digit(c); }))
      refuse("environment variable", "'" + displayable(name) + "' is not a valid name",
             "a name has letters, digits and '_'");
    refuse_secret(name);
    text += " " + quote_for_shell(name + "=" + value);
  }
  // env takes a leading '-' for an option and a '=' for an assignment, whatever the quotes.
  if (command[0].empty() || command[0].front() == '-' || command[0].find('=') != std::string::npos)
    refuse("command", "'" + displayable(command[0]) + "' cannot be a program's name here", "name it by its path");
  for (const auto& word : command) text += " " + quote_for_shell(word);
  return text;
}

}  // namespace

bool looks_secret(std::string_view variable) {
  std::string name(variable);
  for (auto& c : name) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  constexpr std::array kInside = {"TOKEN", "SECRET", "PASSW", "CREDENTIAL", "PRIVATE", "APIKEY"};
  return name == "KEY" || name.ends_with("_KEY") || name.ends_with("_KEYS") || name.ends_with("_PASS") ||
         std::any_of(kInside.begin(), kInside.end(),
                     [&](const char* part) { return name.find(part) != std::string::npos; });
}

std::string quote_for_shell(std::string_view word) {
  if (word.find('\0') != std::string_view::npos)
    refuse("remote command", "'" + displayable(word) + "' has a NUL byte", "remove it");
  std::string quoted;
  bool open = false;
  const auto set_open = [&](bool wanted) {
    if (open != wanted) quoted += '\'';
    open = wanted;
  };
  for (const char c : word) {
    // These mean something within single quotes: to all, to fish, to csh. A backslash outside makes them themselves
    // everywhere.
    const bool special = c == '\'' || c == '\\' || c == '!';
    set_open(!special);
    if (special) quoted += '\\';
    quoted += c;
  }
  set_open(false);
  return quoted.empty() ? "''" : quoted;
}

std::map<std::string, std::string> environment_of_host(const std::map<std::string, std::string>& all) {
  std::map<std::string, std::string> chosen;
  for (const auto& [name, value] : all) {
    const bool setting = name.starts_with("TROUPE_") && name != "TROUPE_KEYS";  // a folder of this host, for torchrun
    if (setting && looks_secret(name))
      refuse("environment variable " + name,
             "its name looks like a secret, and every user of a host can read a command line",
             "write the setting into a file for --config, which every host has");
    const bool library = (name.starts_with("OMP_") || name.starts_with("NCCL_")) && !looks_secret(name);
    if (setting || library || name == "LD_LIBRARY_PATH" || name == "CUDA_VISIBLE_DEVICES") chosen.emplace(name, value);
  }
  return chosen;
}

std::vector<std::string> ssh_command(const Host& host, const std::vector<std::string>& command,
                                     const SshOptions& options) {
  if (command.empty()) refuse("remote command", "it is empty", "name a program");
  for (const auto* text : {&host.name, &host.address}) {  // a Host need not come from a list
    if (text->empty() || text->front() == '-')
      refuse("host '" + displayable(*text) + "'", "ssh would read it as an option", "name the host");
  }
  if (!host.user.empty() && host.user.front() == '-')
    refuse("user '" + displayable(host.user) + "'", "ssh would read it as an option", "name the user");
  // BatchMode first: a password prompt on the terminal of a launcher of many would never be answered. No terminal,
  // agent or forwarding.
  std::vector<std::string> arguments{"ssh", "-T", "-a", "-x", "-o", "BatchMode=yes"};
  arguments.insert(arguments.end(), options.extra_arguments.begin(), options.extra_arguments.end());
  arguments.insert(arguments.end(),
                   {"-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", "-o",
                    "ClearAllForwardings=yes", "-o", "EscapeChar=none"});
  if (host.address != host.name) {  // by the name, ssh finds its own settings and keys for the host
    std::string address;
    for (const char c : host.address) address += c == '%' ? "%%" : std::string(1, c);
    arguments.insert(arguments.end(), {"-o", "HostName=" + address});
  }
  if (host.port != 0) arguments.insert(arguments.end(), {"-p", std::to_string(host.port)});
  if (!host.user.empty()) arguments.insert(arguments.end(), {"-l", host.user});
  arguments.insert(arguments.end(), {"--", host.name, remote_text(command, options)});
  return arguments;
}

}  // namespace troupe
