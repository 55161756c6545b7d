#include "launch/jobs/jobs_command.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <utility>

#include "launch/config/command_flags.hpp"
#include "launch/jobs/job_log.hpp"
#include "launch/jobs/living_jobs.hpp"
#include "launch/observe/run_folder.hpp"
#include "launch/process/displayable.hpp"
#include "launch/process/terminal.hpp"
#include "launch/run/run_file.hpp"
#include "launch/run/run_identity.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPsHelp =
    "usage: troupe ps\n"
    "\n"
    "Lists your jobs on this host: the folder of the run, the launcher's process, when it started, ranks, steps done, "
    "and the command.\n"
    "\n"
    "exit code: 0\n"
    "example: troupe ps\n";

constexpr const char* kAttachHelp =
    "usage: troupe attach [RUN] [--lines N]\n"
    "\n"
    "Shows what a job of `troupe launch --detach` prints, until the job ends. If the job is over, it shows the last "
    "lines. Ctrl-C stops the job as in its own terminal: the ranks finish the step and save. Ctrl-\\ ends attach and "
    "leaves the job alone.\n"
    "\n"
    "  RUN          the folder of the run (default: runs/latest)\n"
    "  --lines N    earlier lines to show first (default 20)\n"
    "\n"
    "exit code: that of the job; 0 after Ctrl-\\; 69 if no job of yours has this folder; 65 if its launch.log is not "
    "yours\n"
    "example: troupe attach runs/latest\n";

std::string since_text(std::chrono::system_clock::time_point since) {
  const auto seconds = std::chrono::system_clock::to_time_t(since);
  std::tm local{};
  ::localtime_r(&seconds, &local);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%m-%d %H:%M", &local)};
}

// As it can be typed here.
std::string shown(const std::string& folder) {
  std::error_code failure;
  const auto here = fs::current_path(failure).string() + "/";
  return displayable(folder.starts_with(here) ? folder.substr(here.size()) : folder, 200);
}

// A launcher that was not detached: the log beside it is an earlier one's.
bool has_terminal(pid_t process, const std::string& log) {
  std::error_code gone;  // a moment ago: its log has the end
  return fs::read_symlink("/proc/" + std::to_string(process) + "/fd/1", gone) != log && !gone;
}

// Of the last job in a folder in which none of this user lives. Its log may be an earlier job's, which another one's
// lock is newer than. Returns the exit code.
int show_end(const std::string& folder, const std::string& name, JobLog& log) {
  struct stat written {
  }, locked{};
  const bool has_lock = ::lstat((folder + "/lock").c_str(), &locked) == 0;
  const bool is_last = !has_lock || ::lstat(job_log_of(folder).c_str(), &written) != 0 ||
                       std::pair(written.st_mtim.tv_sec, written.st_mtim.tv_nsec) >=
                           std::pair(locked.st_mtim.tv_sec, locked.st_mtim.tv_nsec);
  const auto noted = has_lock && locked.st_uid == ::geteuid() ? noted_exit(folder) : std::nullopt;
  if (is_last) log.show_foreign();
  if (const auto code = is_last && !noted ? log.exit_code() : noted) {
    if (!is_last)
      std::printf("troupe: the last job of %s printed to its terminal, and ended with exit code %d\n", name.c_str(),
                  *code);
    return *code;
  }
  throw Error(
      ErrorCode::unavailable, name,
      "no job of yours on this host has this folder, and the last one has noted no exit code: it was killed, or "
      "runs on another host",
      "see troupe ps there, or start again with --resume auto");
}

// Ranks and steps: as the run's records have them now, or as it was started.
std::array<std::string, 2> progress_of(const std::string& folder) {
  std::array<std::string, 2> progress{"-", "-"};
  const auto run = run_facts(folder);
  if (run.is_object() && run.contains("world_size") && run["world_size"].is_number_unsigned())
    progress[0] = std::to_string(run["world_size"].get<std::uint64_t>());
  try {
    const auto records = read_run(folder).records;
    progress[1] = std::to_string(records.back().step);
    const auto now = std::find_if(records.rbegin(), records.rend(), [](const auto& r) { return !r.members.empty(); });
    if (now != records.rend()) progress[0] = std::to_string(now->members.size());
  } catch (const Error&) {  // it has none yet
  }
  return progress;
}

}  // namespace

int ps_command(const std::vector<std::string>& words) {
  bool help = false;
  if (!read_words(words, {{"--help", &help}, {"-h", &help}}, "troupe ps").empty())
    throw Error(ErrorCode::usage, "troupe ps", "it takes no arguments", "see troupe ps --help");
  if (help) return print_help(kPsHelp), 0;
  std::vector<std::array<std::string, 6>> rows{{"RUN", "PROCESS", "SINCE", "RANKS", "STEPS", "COMMAND"}};
  for (const auto& job : living_jobs()) {
    std::string command;
    for (const auto& word : job.command) command += command.empty() ? fs::path(word).filename().string() : " " + word;
    const auto [ranks, steps] = progress_of(job.folder);
    rows.push_back({shown(job.folder), std::to_string(job.process), since_text(job.since), ranks, steps,
                    displayable(command, 100)});
  }
  if (rows.size() == 1) return std::puts("no job of yours runs on this host"), 0;
  std::array<std::size_t, 6> widths{};
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c + 1 < row.size(); ++c) line += row[c] + std::string(widths[c] - row[c].size() + 2, ' ');
    std::puts((line + row.back()).c_str());
  }
  return 0;
}

int attach_command(const std::vector<std::string>& words) {
  bool help = false;
  int lines = 20;
  const auto read_lines = [&lines](const std::string& flag, const std::string& text) {
    lines = text.find_first_not_of("0123456789") == std::string::npos && !text.empty() && text.size() < 7
                ? std::stoi(text)
                : throw Error(ErrorCode::usage, flag, "'" + displayable(text) + "' is not a number of lines");
  };
  const auto runs = read_words(words, {{"--lines", read_lines}, {"--help", &help}, {"-h", &help}}, "troupe attach");
  if (help) return print_help(kAttachHelp), 0;
  if (runs.size() > 1) throw Error(ErrorCode::usage, "troupe attach", "it takes one RUN", "see troupe attach --help");
  const std::string run = runs.empty() ? std::string(kRunsFolder) + "/latest" : runs[0];
  const auto name = displayable(run, 200);
  std::error_code failure, none;
  const auto folder = fs::canonical(run, failure).string();
  const auto job = living_job_in(run);
  const auto path = job_log_of(folder);
  const bool has_log = fs::exists(fs::symlink_status(path, none));
  if (failure || (!job && !has_log))
    throw Error(ErrorCode::unavailable, name, "no job of yours on this host has this folder",
                "see troupe ps for your jobs, or troupe report " + name + " for a run that is over");
  auto log = JobLog::last_lines(path, lines);
  if (!job) return show_end(folder, name, log);
  if (!job->launched || !has_log || has_terminal(job->process, path))
    throw Error(ErrorCode::usage, name, "its job prints to the terminal that it was started in",
                "follow it with troupe top " + name);

  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) ::sigaddset(&signals, number);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  const int came = ::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  const int process = static_cast<int>(::syscall(SYS_pidfd_open, job->process, 0));
  for (bool over = process < 0; !over;) {
    std::array<pollfd, 2> fds{{{came, POLLIN, 0}, {process, POLLIN, 0}}};
    ::poll(fds.data(), fds.size(), 100);
    over = fds[1].revents != 0;
    log.show_new();
    signalfd_siginfo signal{};
    if (over || ::read(came, &signal, sizeof signal) != sizeof signal) continue;
    if (signal.ssi_signo != SIGINT) {
      std::printf("\ntroupe: the job goes on; `troupe attach %s` shows it again\n", name.c_str());
      return 0;
    }
    ::kill(job->process, SIGINT);
  }
  log.show_new();
  if (const auto code = log.exit_code()) return *code;
  throw Error(ErrorCode::unavailable, name, "its launcher was killed, and with it the ranks",
              "start again with --resume auto");
}

}  // namespace troupe
