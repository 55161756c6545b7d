#include "launch/jobs/living_jobs.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

#include "launch/run/run_file.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> command_of(const fs::path& process) {
  std::ifstream file(process / "cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

// Clock ticks after the machine's start, the 22nd field of its stat (proc(5)); the second has the program's name in
// parentheses. The folder's own time is when somebody first looked.
std::chrono::system_clock::time_point start_of(const fs::path& process) {
  std::ifstream file(process / "stat"), machine("/proc/stat");
  std::string text, word;
  std::getline(file, text);
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  long long ticks = 0, boot = 0;
  for (int field = 3; field < 22; ++field) fields >> word;
  fields >> ticks;
  while (machine >> word && word != "btime") {
  }
  machine >> boot;
  return std::chrono::system_clock::from_time_t(boot + ticks / ::sysconf(_SC_CLK_TCK));
}

// The folder whose file `lock` the process has open.
std::optional<std::string> locked_folder(const fs::path& process, bool launched) {
  std::error_code failure;
  for (fs::directory_iterator fd(process / "fd", failure), end; !failure && fd != end; fd.increment(failure)) {
    std::error_code gone;
    const auto target = fs::read_symlink(fd->path(), gone);
    if (gone || target.filename() != "lock") continue;
    const auto folder = target.parent_path().string();
    if (launched || !read_run_json(folder).empty()) return folder;  // other programs have files of that name, too
  }
  return std::nullopt;
}

}  // namespace

std::vector<LivingJob> living_jobs() {
  std::vector<LivingJob> jobs;
  std::error_code failure;
  for (fs::directory_iterator entry("/proc", failure), end; !failure && entry != end; entry.increment(failure)) {
    const auto name = entry->path().filename().string();
    struct stat facts {};
    if (name.find_first_not_of("0123456789") != std::string::npos || ::stat(entry->path().c_str(), &facts) != 0 ||
        facts.st_uid != ::geteuid())
      continue;
    auto command = command_of(entry->path());
    std::error_code gone;
    const bool launched = command.size() > 1 && command[1] == "launch" &&
                          fs::read_symlink(entry->path() / "exe", gone).filename().string().starts_with("troupe");
    const auto folder = locked_folder(entry->path(), launched);
    if (!folder) continue;
    jobs.push_back(
        {static_cast<pid_t>(std::stol(name)), *folder, start_of(entry->path()), std::move(command), launched});
  }
  std::sort(jobs.begin(), jobs.end(), [](const auto& a, const auto& b) { return a.process < b.process; });
  std::stable_sort(jobs.begin(), jobs.end(), [](const auto& a, const auto& b) { return a.since < b.since; });
  return jobs;
}

std::optional<LivingJob> living_job_in(const std::string& run) {
  std::error_code failure;
  const auto folder = fs::canonical(run, failure).string();
  if (failure) return std::nullopt;
  for (auto& job : living_jobs()) {
    if (job.folder == folder) return job;
  }
  return std::nullopt;
}

}  // namespace troupe
