#include "launch/run/run_identity.hpp"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>

#include "tensor_io/files/xxh3.hpp"

namespace troupe {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Seconds since 1970; 0 where /proc/stat does not say.
std::time_t boot_time() {
  std::istringstream lines(text_of("/proc/stat"));
  for (std::string line; std::getline(lines, line);) {
    long long seconds = 0;
    if (std::sscanf(line.c_str(), "btime %lld", &seconds) == 1) return static_cast<std::time_t>(seconds);
  }
  return 0;
}

}  // namespace

std::string make_job_id() {
  std::random_device random;
  char text[33];
  std::snprintf(text, sizeof text, "%08x%08x%08x%08x", random(), random(), random(), random());
  return text;
}

RunIdentity new_run_identity() { return {make_job_id(), std::time(nullptr)}; }

std::optional<RunIdentity> parent_identity() {
  constexpr int kStartTime = 20;  // fields of proc_pid_stat(5) after the name, which may hold anything but ')'
  const auto parent = std::to_string(::getppid());
  const auto stat = text_of("/proc/" + parent + "/stat");
  const auto name_ends = stat.rfind(')');
  const auto boot = boot_time();
  if (name_ends == std::string::npos || boot == 0) return std::nullopt;
  std::istringstream fields(stat.substr(name_ends + 1));
  std::string ticks;
  for (int i = 0; i < kStartTime; ++i) fields >> ticks;
  if (!fields) return std::nullopt;
  const auto id = xxh3_text(xxh3(text_of("/proc/sys/kernel/random/boot_id") + parent + " " + ticks));
  return RunIdentity{id, boot + static_cast<std::time_t>(std::stoull(ticks) / ::sysconf(_SC_CLK_TCK))};
}

std::string name_in_folder(const std::string& program) {
  constexpr std::size_t kLongestName = 40;
  auto name = std::filesystem::path(program).filename().string().substr(0, kLongestName);
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c) && c != '_' && c != '-' && c != '.'; },
      '_');
  return name;
}

bool is_folder_of(const std::string& folder, const std::string& program) {
  constexpr std::size_t kBefore = 16, kBehind = 5;  // the time, the letters
  const auto name = std::filesystem::path(folder).filename().string();
  return name.size() > kBefore + kBehind &&
         name.substr(kBefore, name.size() - kBefore - kBehind) == name_in_folder(program);
}

std::string run_folder_of(const RunIdentity& run, const std::string& program) {
  std::tm local{};
  ::localtime_r(&run.begun, &local);
  char time[32];
  std::strftime(time, sizeof time, "%Y%m%d-%H%M%S", &local);
  auto hash = xxh3(run.id);
  std::string letters;
  for (int i = 0; i < 4; ++i, hash /= 26) letters += static_cast<char>('a' + hash % 26);
  return std::string(kRunsFolder) + "/" + time + "-" + name_in_folder(program) + "-" + letters;
}

}  // namespace troupe
