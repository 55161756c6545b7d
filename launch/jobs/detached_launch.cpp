#include "launch/jobs/detached_launch.hpp"

#include <fcntl.h>
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
#include <thread>
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

// What the launcher says of itself once it has the run's folder.
struct Place {
  std::uint64_t log_begin = 0;
  std::size_t run_json = 0;  // a hash of what an earlier life has left
  std::string folder;
};

std::size_t hash_of_run(const std::string& folder) { return std::hash<std::string>()(read_run_json(folder)); }

void replace(int fd, int by) {
  while (::dup2(by, fd) < 0 && errno == EINTR) {
  }
}

// The rest of the launcher's lines go to the log.
void leave_terminal(const std::string& folder, int told) {
  const auto path = job_log_of(folder);
  const int log = open_plain(path, O_WRONLY | O_CREAT | O_APPEND);
  if (log < 0) throw Error(ErrorCode::io, path, io_cause(errno), "choose another --run-dir");
  ::fchmod(log, 0600);  // as a terminal, it is its user's alone: the page's token is in it
  struct stat facts {};
  ::fstat(log, &facts);
  std::fflush(nullptr);
  replace(1, log);
  replace(2, log);
  ::close(log);
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  std::ostringstream words;
  words << facts.st_size << ' ' << hash_of_run(folder) << ' ' << folder;
  const auto text = words.str();
  (void)!::write(told, text.data(), text.size());
  ::close(told);
}

int launch_in_background(LauncherOptions options, int told) {
  ::setsid();
  for (const int number : {SIGINT, SIGHUP})
    ::signal(number, SIG_DFL);  // a script's background job ignores them, and `attach` stops it by one
  if (const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC); nothing >= 0) replace(0, nothing);
  bool detached = false;
  options.on_run_folder = [&](const std::string& folder) {
    if (!std::exchange(detached, true)) leave_terminal(folder, told);
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

// Empty: the launcher has ended before.
std::string hear(int fd) {
  std::string text;
  std::array<char, 4096> block{};
  for (;;) {
    const auto n = ::read(fd, block.data(), block.size());
    if (n > 0) text.append(block.data(), static_cast<std::size_t>(n));
    if (n == 0 || (n < 0 && errno != EINTR)) return text;
  }
}

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

  Place place;
  std::istringstream words(hear(ends[0]));
  ::close(ends[0]);
  if (!(words >> place.log_begin >> place.run_json) || words.get() != ' ' || !std::getline(words, place.folder, '\0'))
    return ended(launcher, 0).value_or(exit_code(ErrorCode::internal));
  JobLog log(job_log_of(place.folder), place.log_begin);
  const auto deadline = std::chrono::steady_clock::now() + kBegin;
  while (hash_of_run(place.folder) == place.run_json && std::chrono::steady_clock::now() < deadline) {
    const auto code = ended(launcher, WNOHANG);
    log.show_new();
    if (code) return *code;
    std::this_thread::sleep_for(50ms);
  }
  log.show_new();
  const auto run = displayable(place.folder, 200);
  std::printf(
      "troupe: process %d goes on without this terminal; `troupe attach %s` shows what it prints, and stops it\n",
      static_cast<int>(launcher), run.c_str());
  return 0;
}

}  // namespace troupe
