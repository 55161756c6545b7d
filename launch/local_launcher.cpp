#include "launch/local_launcher.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <memory>
#include <random>

#include "launch/child_process.hpp"
#include "launch/output_lines.hpp"
#include "tensor_io/error.hpp"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kPeersEnd = 3s;       // after the first failure the coordinator ends the others within 1 s; then SIGTERM ...
constexpr auto kPeersKilled = 5s;    // ... then SIGKILL
constexpr auto kStopPatience = 60s;  // a rank that was asked to stop finishes its step and its checkpoint

struct FileClose {
  void operator()(FILE* file) const { std::fclose(file); }
};

struct RankProcess {
  int rank = 0;
  std::unique_ptr<ChildProcess> process;
  std::unique_ptr<FILE, FileClose> log;
  std::string log_path;
  OutputLines out, err;
  std::deque<std::string> last_lines;
};

class LocalLauncher {
 public:
  explicit LocalLauncher(const LocalLaunchOptions& options) : options_(options), terminal_(isatty(1) != 0) {}
  ~LocalLauncher() {
    if (signals_ >= 0) ::close(signals_);
  }

  int run() {
    block_signals();
    const auto program = find_program(options_.command[0]);
    job_ = make_job_id();
    start_coordinator();
    start_ranks(program);
    while (alive() > 0 || open_pipes() > 0) {
      step();
      if (alive() == 0 && Clock::now() > last_exit_ + 2s) break;  // a grandchild may hold a pipe open for ever
    }
    for (auto& rank : ranks_) drain(rank);
    clear_bar();
    return verdict();
  }

 private:
  static std::string make_job_id() {
    std::random_device random;
    char text[33];
    std::snprintf(text, sizeof text, "%08x%08x%08x%08x", random(), random(), random(), random());
    return text;
  }

  void block_signals() {
    sigset_t set;
    sigemptyset(&set);
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&set, number);
    sigprocmask(SIG_BLOCK, &set, nullptr);
    ::signal(SIGPIPE, SIG_IGN);
    signals_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals_ < 0) throw Error(ErrorCode::unavailable, "signalfd", std::strerror(errno));
  }

  void start_coordinator() {
    ChildProcess::Options child;
    child.arguments = {options_.troupe_program, "coordinator", "--job", job_, "--world-size", std::to_string(options_.nproc)};
    child.keep_stdin_open = true;
    coordinator_ = std::make_unique<ChildProcess>(child);
    std::string said;
    const auto deadline = Clock::now() + 30s;
    while (said.find('\n') == std::string::npos) {
      pollfd ready{coordinator_->stdout_fd(), POLLIN, 0};
      ::poll(&ready, 1, 100);
      char block[256];
      const auto n = ::read(coordinator_->stdout_fd(), block, sizeof block);
      if (n > 0) said.append(block, static_cast<std::size_t>(n));
      if (n == 0 || coordinator_->poll_exit() || Clock::now() > deadline) {
        char reason[1024] = "";
        const auto m = ::read(coordinator_->stderr_fd(), reason, sizeof reason - 1);
        throw Error(ErrorCode::unavailable, "coordinator",
                    "it did not start" + (m > 0 ? ": " + std::string(reason, static_cast<std::size_t>(m)) : std::string()));
      }
    }
    if (std::sscanf(said.c_str(), "port %d", &port_) != 1)
      throw Error(ErrorCode::internal, "coordinator", "it said '" + said + "' instead of its port");
  }

  void start_ranks(const std::string& program) {
    std::error_code failure;
    std::filesystem::create_directories(options_.run_dir, failure);
    if (failure) throw Error(ErrorCode::io, options_.run_dir, "cannot make this folder: " + failure.message(), "choose another --run-dir");
    for (int r = 0; r < options_.nproc; ++r) {
      RankProcess rank;
      rank.rank = r;
      rank.log_path = options_.run_dir + "/rank" + std::to_string(r) + ".log";
      rank.log.reset(std::fopen(rank.log_path.c_str(), "w"));
      if (!rank.log) throw Error(ErrorCode::io, rank.log_path, std::strerror(errno), "choose another --run-dir");
      ChildProcess::Options child;
      child.arguments = options_.command;
      child.arguments[0] = program;
      const auto n = std::to_string(options_.nproc), id = std::to_string(r), port = std::to_string(port_);
      child.environment = {{"RANK", id},
                           {"LOCAL_RANK", id},
                           {"WORLD_SIZE", n},
                           {"LOCAL_WORLD_SIZE", n},
                           {"GROUP_RANK", "0"},
                           {"GROUP_WORLD_SIZE", "1"},
                           {"ROLE_RANK", id},
                           {"ROLE_WORLD_SIZE", n},
                           {"MASTER_ADDR", "127.0.0.1"},
                           {"MASTER_PORT", port},
                           {"TORCHELASTIC_RESTART_COUNT", "0"},
                           {"TORCHELASTIC_MAX_RESTARTS", "0"},
                           {"TORCHELASTIC_RUN_ID", job_},
                           {"TROUPE_COORDINATOR", "127.0.0.1:" + port},
                           {"TROUPE_JOB_ID", job_},
                           {"TROUPE_NODE", "localhost"},
                           {"TROUPE_RUN_DIR", options_.run_dir}};
      if (std::getenv("OMP_NUM_THREADS") == nullptr) child.environment["OMP_NUM_THREADS"] = "1";  // ranks share the cores
      if (r == 0 && terminal_) child.environment["TROUPE_PROGRESS"] = "bar";
      rank.process = std::make_unique<ChildProcess>(child);
      ranks_.push_back(std::move(rank));
    }
  }

  std::size_t alive() const {
    std::size_t n = 0;
    for (const auto& rank : ranks_) n += rank.process->ended() ? 0 : 1;
    return n;
  }
  std::size_t open_pipes() const {
    std::size_t n = 0;
    for (const auto& rank : ranks_) n += (rank.process->stdout_fd() >= 0 ? 1 : 0) + (rank.process->stderr_fd() >= 0 ? 1 : 0);
    return n;
  }

  void step() {
    std::vector<pollfd> polled{{signals_, POLLIN, 0}};
    for (const auto& rank : ranks_) {
      if (rank.process->stdout_fd() >= 0) polled.push_back({rank.process->stdout_fd(), POLLIN, 0});
      if (rank.process->stderr_fd() >= 0) polled.push_back({rank.process->stderr_fd(), POLLIN, 0});
    }
    ::poll(polled.data(), polled.size(), 100);
    signalfd_siginfo info{};
    while (::read(signals_, &info, sizeof info) == sizeof info) {
      if (info.ssi_signo != SIGCHLD) asked_to_stop(static_cast<int>(info.ssi_signo));
    }
    for (auto& rank : ranks_) drain(rank);
    for (auto& rank : ranks_) {
      if (rank.process->ended()) continue;
      if (const auto status = rank.process->poll_exit()) exited(rank, *status);
    }
    enforce_deadlines();
  }

  void asked_to_stop(int number) {
    if (stop_signal_ != 0) {
      for (auto& rank : ranks_) rank.process->signal(SIGKILL);
      return;
    }
    stop_signal_ = number;
    stop_deadline_ = Clock::now() + kStopPatience;
    clear_bar();
    std::fprintf(stderr, "troupe: %s: every rank finishes its step and writes a checkpoint; once more ends them at once\n",
                 strsignal(number));
    for (auto& rank : ranks_) rank.process->signal(number == SIGHUP ? SIGTERM : number);
  }

  void exited(RankProcess& rank, int status) {
    last_exit_ = Clock::now();
    drain(rank);
    if (status != 0 && failed_ == nullptr && stop_signal_ == 0) {
      failed_ = &rank;
      failed_status_ = status;
      failed_at_ = Clock::now();
    }
    if (status != 0 && stop_signal_ != 0 && exit_code_of_wait_status(status) != 128 + stop_signal_ && failed_ == nullptr) {
      failed_ = &rank;
      failed_status_ = status;
      failed_at_ = Clock::now();
    }
    // The rank that failed of itself is worth more than one that was aborted because of it (exit 70).
    if (status != 0 && failed_ != nullptr && exit_code_of_wait_status(failed_status_) == 70 && exit_code_of_wait_status(status) != 70 &&
        exit_code_of_wait_status(status) < 128) {
      failed_ = &rank;
      failed_status_ = status;
    }
  }

  void enforce_deadlines() {
    const auto now = Clock::now();
    if (failed_ != nullptr && now > failed_at_ + kPeersEnd) {
      for (auto& rank : ranks_) rank.process->signal(now > failed_at_ + kPeersKilled ? SIGKILL : SIGTERM);
    }
    if (stop_signal_ != 0 && now > stop_deadline_) {
      for (auto& rank : ranks_) rank.process->signal(SIGKILL);
    }
  }

  void drain(RankProcess& rank) {
    drain(rank, rank.process->stdout_fd(), rank.out, 1);
    drain(rank, rank.process->stderr_fd(), rank.err, 2);
  }

  void drain(RankProcess& rank, int fd, OutputLines& lines, int target) {
    if (fd < 0) return;
    const auto show = [&](std::string_view text, bool overwrite) { this->show(rank, text, overwrite, target); };
    char block[1 << 14];
    for (;;) {
      const auto n = ::read(fd, block, sizeof block);
      if (n > 0) {
        lines.feed({block, static_cast<std::size_t>(n)}, show);
        continue;
      }
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
      lines.finish(show);
      target == 1 ? rank.process->close_stdout() : rank.process->close_stderr();
      return;
    }
  }

  void show(RankProcess& rank, std::string_view text, bool overwrite, int target) {
    const int length = static_cast<int>(text.size());
    if (overwrite && terminal_ && target == 1) {
      std::fprintf(stdout, "\r\x1b[K[rank %d] %.*s", rank.rank, length, text.data());
      std::fflush(stdout);
      bar_shown_ = true;
      return;
    }
    clear_bar();
    FILE* file = target == 1 ? stdout : stderr;
    std::fprintf(file, "[rank %d] %.*s\n", rank.rank, length, text.data());
    std::fflush(file);
    std::fprintf(rank.log.get(), "%.*s\n", length, text.data());
    std::fflush(rank.log.get());
    rank.last_lines.emplace_back(text);
    if (rank.last_lines.size() > 10) rank.last_lines.pop_front();
  }

  void clear_bar() {
    if (!bar_shown_) return;
    std::fputs("\r\x1b[K", stdout);
    std::fflush(stdout);
    bar_shown_ = false;
  }

  int verdict() {
    coordinator_->close_stdin();
    if (failed_ == nullptr) {
      if (stop_signal_ == 0) return 0;
      return 128 + stop_signal_;
    }
    std::fprintf(stderr, "troupe: rank %d failed: %s; its log: %s\n", failed_->rank, describe_wait_status(failed_status_).c_str(),
                 failed_->log_path.c_str());
    if (!failed_->last_lines.empty()) std::fprintf(stderr, "troupe: its last line: %s\n", failed_->last_lines.back().c_str());
    return exit_code_of_wait_status(failed_status_);
  }

  const LocalLaunchOptions& options_;
  bool terminal_;
  bool bar_shown_ = false;
  int signals_ = -1;
  int port_ = 0;
  std::string job_;
  std::unique_ptr<ChildProcess> coordinator_;
  std::vector<RankProcess> ranks_;
  RankProcess* failed_ = nullptr;
  int failed_status_ = 0;
  int stop_signal_ = 0;
  Clock::time_point failed_at_, stop_deadline_, last_exit_;
};

}  // namespace

int launch_local(const LocalLaunchOptions& options) { return LocalLauncher(options).run(); }

}  // namespace troupe
