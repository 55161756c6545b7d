#include "launch/jobs/detached_launch.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>
#include <sstream>
#include <utility>

#include "launch/jobs/job_log.hpp"
#include "launch/process/child_process.hpp"
#include "launch/process/displayable.hpp"
#include "launch/run/run_file.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/files/file_layer.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

constexpr auto kBegin = 120s;
constexpr auto kNoRecovery = 5s;  // the program may be none of Troupe's, which says that it begins

// The launcher says two things to the command: the log's size with the run's folder, and that the job has begun.
void say(int to, std::string words) {
  words += '\0';
  (void)!::write(to, words.data(), words.size());
}

// Empty: the launcher has ended before.
std::string hear(int from) {
  std::string words;
  for (char byte = 0;;) {
    const auto n = ::read(from, &byte, 1);
    if (n == 1 && byte == '\0') return words;
    if (n == 1) words += byte;
    if (n == 0 || (n < 0 && errno != EINTR)) return {};
  }
}

void replace(int fd, int by) {
  while (::dup2(by, fd) < 0 && errno == EINTR) {
  }
}

// The rest of the launcher's lines go to the log. Returns its size so far.
off_t leave_terminal(const std::string& folder) {
  const auto path = job_log_of(folder);
  const int log = open_plain(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (log < 0) throw Error(ErrorCode::io, path, io_cause(errno), "choose another --run-dir");
  struct stat facts {};
  ::fstat(log, &facts);
  // As a terminal, it is its user's alone: the page's token is in it. An older one may be open to others.
  if ((facts.st_mode & 0777) != 0600) ::fchmod(log, 0600);
  std::fflush(nullptr);
  replace(1, log);
  replace(2, log);
  ::close(log);
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  return facts.st_size;
}

int launch_in_background(LauncherOptions options, int command) {
  ::setsid();
  for (const int number : {SIGINT, SIGHUP})
    ::signal(number, SIG_DFL);  // a script's background job ignores them, and `attach` stops it by one
  if (const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC); nothing >= 0) replace(0, nothing);
  bool detached = false, written = false, begun = false;
  std::string run, earlier;  // its run.json, of a life before
  options.on_run_folder = [&](const std::string& folder) {
    if (std::exchange(detached, true)) return;
    run = folder;
    earlier = read_run_json(run);
    say(command, std::to_string(leave_terminal(run)) + ' ' + run);
  };
  // Rank 0 writes run.json once all ranks have begun. What they said before is in the log one turn later.
  options.on_output = [&] {
    if (begun) return;
    if (written) say(command, "begun");
    begun = written;
    written = read_run_json(run) != earlier;
  };
  int code = 0;
  try {
    code = launch(options);
  } catch (const Error& error) {
    std::fprintf(stderr, "troupe: %s\n", error.what());
    code = exit_code(error.code());
  }
  if (detached) std::fprintf(stderr, "%s\n", end_line(code).c_str());
  return code;
}

std::atomic<pid_t> launcher_of_signals{0};
extern "C" void pass_on(int number) { ::kill(launcher_of_signals, number); }

std::optional<int> ended(pid_t launcher, int flags) {
  int status = 0;
  pid_t found = 0;
  while ((found = ::waitpid(launcher, &status, flags)) < 0 && errno == EINTR) {
  }
  return found == launcher ? std::optional(exit_code_of_wait_status(status)) : std::nullopt;
}

}  // namespace

int launch_detached(const LauncherOptions& options) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw Error(ErrorCode::unavailable, "--detach", std::strerror(errno));
  std::fflush(nullptr);
  const pid_t launcher = ::fork();
  if (launcher < 0) throw Error(ErrorCode::unavailable, "--detach", std::strerror(errno), "see ulimit -u");
  if (launcher == 0) {
    ::close(ends[0]);
    return launch_in_background(options, ends[1]);
  }
  ::close(ends[1]);
  launcher_of_signals = launcher;
  struct sigaction action {};
  action.sa_handler = pass_on;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(number, &action, nullptr);

  const auto fails = [&] { return ended(launcher, 0).value_or(exit_code(ErrorCode::internal)); };
  std::istringstream words(hear(ends[0]));
  std::uint64_t log_begin = 0;
  std::string folder;
  if (!(words >> log_begin) || words.get() != ' ' || !std::getline(words, folder, '\0')) return fails();
  JobLog log(job_log_of(folder), log_begin);
  const auto deadline = std::chrono::steady_clock::now() + (options.recovery.enabled ? kBegin : kNoRecovery);
  pollfd more{ends[0], POLLIN, 0};
  while (::poll(&more, 1, 50) <= 0 && std::chrono::steady_clock::now() < deadline) log.show_new();
  const bool answered = more.revents != 0, gone = answered && hear(ends[0]).empty();
  const auto code = gone ? std::optional(fails()) : std::nullopt;
  log.show_new();
  if (code) return *code;
  const auto run = displayable(folder, 200);
  std::printf(
      "troupe: process %d goes on without this terminal%s; `troupe attach %s` shows what it prints, and stops it\n",
      static_cast<int>(launcher), answered ? "" : ", but its ranks have not reported yet that they begin", run.c_str());
  return 0;
}

}  // namespace troupe
