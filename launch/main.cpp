// The `troupe` command.
#include <unistd.h>
#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "launch/config.hpp"
#include "launch/coordinator_process.hpp"
#include "launch/local_launcher.hpp"

namespace {

constexpr const char* kHelp =
    "usage: troupe VERB ...\n"
    "\n"
    "  launch --nproc N [--run-dir DIR] PROGRAM [ARGUMENTS]   start N ranks of PROGRAM on this machine\n"
    "  config reference                                       the list of settings, as docs/config.md\n"
    "  --help, --version\n"
    "\n"
    "example: troupe launch --nproc 2 ./train --lr 0.05\n";

std::string own_path() {
  char path[PATH_MAX];
  const auto n = ::readlink("/proc/self/exe", path, sizeof path);
  if (n <= 0) throw troupe::Error(troupe::ErrorCode::unavailable, "/proc/self/exe", "cannot be read", "mount /proc");
  return std::string(path, static_cast<std::size_t>(n));
}

int whole_number(const std::string& flag, const std::string& text, int minimum, int maximum) {
  std::size_t used = 0;
  long value = 0;
  try {
    value = std::stol(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != text.size() || value < minimum || value > maximum) {
    throw troupe::Error(troupe::ErrorCode::usage, flag,
                        "'" + text + "' is no whole number from " + std::to_string(minimum) + " to " + std::to_string(maximum));
  }
  return static_cast<int>(value);
}

// Flags up to the first word that is none; their values by name. `--name value` or `--name=value`, - and _ alike.
std::size_t read_flags(const std::vector<std::string>& words, const std::vector<std::string>& with_value,
                       const std::vector<std::string>& switches, std::vector<std::pair<std::string, std::string>>& found) {
  std::size_t i = 0;
  for (; i < words.size() && words[i].starts_with("-"); ++i) {
    if (words[i] == "--") return i + 1;
    auto name = words[i].substr(0, words[i].find('='));
    for (auto& c : name) c = c == '_' ? '-' : c;
    const bool takes = std::find(with_value.begin(), with_value.end(), name) != with_value.end();
    if (!takes && std::find(switches.begin(), switches.end(), name) == switches.end()) {
      auto known = with_value;
      known.insert(known.end(), switches.begin(), switches.end());
      const auto near = troupe::nearest_name(name, known);
      throw troupe::Error(troupe::ErrorCode::usage, "command line", "there is no flag " + name + " here",
                          near.empty() ? "see troupe --help" : "did you mean " + near + "?");
    }
    if (!takes) {
      found.emplace_back(name, "");
    } else if (const auto equals = words[i].find('='); equals != std::string::npos) {
      found.emplace_back(name, words[i].substr(equals + 1));
    } else if (i + 1 < words.size()) {
      found.emplace_back(name, words[++i]);
    } else {
      throw troupe::Error(troupe::ErrorCode::usage, name, "the flag has no value");
    }
  }
  return i;
}

int launch(const std::vector<std::string>& words) {
  troupe::LocalLaunchOptions options;
  std::vector<std::pair<std::string, std::string>> flags;
  const auto first = read_flags(words, {"--nproc", "-n", "--nproc-per-node", "--run-dir"}, {"--standalone", "--help"}, flags);
  for (const auto& [name, value] : flags) {
    if (name == "--help") return std::fputs(kHelp, stdout), 0;
    if (name == "--nproc" || name == "-n" || name == "--nproc-per-node") options.nproc = whole_number(name, value, 1, 1024);
    if (name == "--run-dir") options.run_dir = value;
  }
  options.command.assign(words.begin() + static_cast<std::ptrdiff_t>(first), words.end());
  if (options.command.empty()) throw troupe::Error(troupe::ErrorCode::usage, "launch", "which program?", "troupe launch --nproc 2 ./train");
  options.troupe_program = own_path();
  return troupe::launch_local(options);
}

int coordinate(const std::vector<std::string>& words) {
  std::string job;
  int world_size = 1;
  std::vector<std::pair<std::string, std::string>> flags;
  read_flags(words, {"--job", "--world-size"}, {}, flags);
  for (const auto& [name, value] : flags) {
    if (name == "--job") job = value;
    if (name == "--world-size") world_size = whole_number(name, value, 1, 1'000'000);
  }
  return troupe::run_coordinator(job, world_size);
}

int run(const std::vector<std::string>& words) {
  if (words.empty()) return std::fputs(kHelp, stderr), 2;
  const std::vector<std::string> rest(words.begin() + 1, words.end());
  const auto& verb = words[0];
  if (verb == "--help" || verb == "-h" || verb == "help") return std::fputs(kHelp, stdout), 0;
  if (verb == "--version") return std::puts("troupe " TROUPE_VERSION), 0;
  if (verb == "launch") return launch(rest);
  if (verb == "coordinator") return coordinate(rest);
  if (verb == "config" && rest == std::vector<std::string>{"reference"}) return std::cout << troupe::config_reference(), 0;
  const auto near = troupe::nearest_name(verb, {"launch", "coordinator", "config", "help"});
  throw troupe::Error(troupe::ErrorCode::usage, "command line", "there is no verb '" + verb + "'",
                      near.empty() ? "see troupe --help" : "did you mean " + near + "?");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const troupe::Error& error) {
    std::fprintf(stderr, "troupe: %s\n", error.what());
    return troupe::exit_code(error.code());
  }
}
