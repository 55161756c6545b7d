#include "launch/launcher.hpp"

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
#include "launch/node_agent.hpp"
#include "launch/output_lines.hpp"
#include "tensor_io/error.hpp"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

std::string make_job_id() {
  std::random_device random;
  char text[33];
  std::snprintf(text, sizeof text, "%08x%08x%08x%08x", random(), random(), random(), random());
  return text;
}

std::string number(std::chrono::milliseconds duration) { return std::to_string(duration.count()); }

/// SIGINT, SIGTERM, SIGHUP and SIGCHLD as a file to poll.
class Signals {
 public:
  Signals() {
    sigset_t set;
    sigemptyset(&set);
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&set, number);
    sigprocmask(SIG_BLOCK, &set, nullptr);  // before any thread is made: they inherit it
    ::signal(SIGPIPE, SIG_IGN);
    fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd_ < 0) throw Error(ErrorCode::unavailable, "signalfd", std::strerror(errno));
  }
  ~Signals() { ::close(fd_); }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  int fd() const noexcept { return fd_; }
  /// The next signal that asks for an end; 0: none.
  int take() const {
    signalfd_siginfo info;
    while (::read(fd_, &info, sizeof info) == sizeof info) {
      if (info.ssi_signo != SIGCHLD) return static_cast<int>(info.ssi_signo);
    }
    return 0;
  }

 private:
  int fd_ = -1;
};

/// The coordinator's process, started again when it dies: the job's state is in the journal and in the ranks.
class CoordinatorChild {
 public:
  CoordinatorChild(const LauncherOptions& options, const std::string& job, int world_size, std::string address)
      : options_(options), job_(job), world_size_(world_size), address_(std::move(address)) {
    std::error_code failure;
    std::filesystem::create_directories(options_.run_dir, failure);
    if (failure) throw Error(ErrorCode::io, options_.run_dir, failure.message(), "choose another --run-dir");
    std::filesystem::remove(options_.run_dir + "/journal", failure);  // of a job before
    start();
  }
  int port() const noexcept { return port_; }
  pid_t pid() const { return child_->pid(); }

  void add_fds(std::vector<pollfd>& fds) const {
    if (child_->stderr_fd() >= 0) fds.push_back({child_->stderr_fd(), POLLIN, 0});
  }
  void step(const std::function<void()>& before_line) {
    drain(before_line);
    const auto status = child_->ended() ? std::nullopt : child_->poll_exit();
    if (!status) return;
    drain(before_line);
    const auto now = Clock::now();
    std::erase_if(starts_, [&](const auto& at) { return now - at > 60s; });
    before_line();
    std::fprintf(stderr, "troupe: the coordinator died (%s)\n", describe_wait_status(*status).c_str());
    if (!options_.recovery.enabled || starts_.size() >= 5) return;
    start();
  }

 private:
  void start() {
    starts_.push_back(Clock::now());
    const auto& recovery = options_.recovery;
    ChildProcess::Options child;
    child.arguments = {options_.troupe_program,     "coordinator", "--job",  job_,     "--world-size",
                       std::to_string(world_size_), "--address",   address_, "--port", std::to_string(port_)};
    if (recovery.enabled) {
      for (const auto& word : std::vector<std::string>{
               "--recovery", "--journal", options_.run_dir + "/journal", "--min-ranks", std::to_string(recovery.min_ranks),
               "--max-restarts", std::to_string(recovery.max_restarts), "--replace-timeout-ms", number(recovery.replace_timeout),
               "--suspect-ms", number(recovery.suspect_after), "--fence-ms", number(recovery.fence_after), "--restart-window-ms",
               number(recovery.restart_window), "--park-ms", number(recovery.park_after)})
        child.arguments.push_back(word);
    }
    child.keep_stdin_open = true;
    child_ = std::make_unique<ChildProcess>(child);
    std::string said;
    const auto deadline = Clock::now() + 30s;
    while (said.find('\n') == std::string::npos) {
      pollfd ready{child_->stdout_fd(), POLLIN, 0};
      ::poll(&ready, 1, 100);
      char block[256];
      const auto n = ::read(child_->stdout_fd(), block, sizeof block);
      if (n > 0) said.append(block, static_cast<std::size_t>(n));
      if (n == 0 || child_->poll_exit() || Clock::now() > deadline) {
        char reason[1024] = "";
        const auto m = ::read(child_->stderr_fd(), reason, sizeof reason - 1);
        throw Error(ErrorCode::unavailable, "coordinator",
                    "it did not start" + (m > 0 ? ": " + std::string(reason, static_cast<std::size_t>(m)) : std::string()));
      }
    }
    if (std::sscanf(said.c_str(), "port %d", &port_) != 1)
      throw Error(ErrorCode::internal, "coordinator", "it said '" + said + "' instead of its port");
  }

  void drain(const std::function<void()>& before_line) {
    char block[4096];
    for (ssize_t n; child_->stderr_fd() >= 0 && (n = ::read(child_->stderr_fd(), block, sizeof block)) > 0;) {
      lines_.feed({block, static_cast<std::size_t>(n)}, [&](std::string_view text, bool) {
        before_line();
        std::fprintf(stderr, "troupe: %.*s\n", static_cast<int>(text.size()), text.data());
        std::fflush(stderr);
      });
    }
  }

  const LauncherOptions& options_;
  std::string job_;
  int world_size_;
  std::string address_;
  int port_ = 0;
  std::unique_ptr<ChildProcess> child_;
  OutputLines lines_;
  std::deque<Clock::time_point> starts_;
};

int launch_here(const LauncherOptions& options) {
  const Signals signals;
  const auto program = find_program(options.command[0]);
  const auto job = make_job_id();
  CoordinatorChild coordinator(options, job, options.nproc, "127.0.0.1");
  RankProcessOptions ranks;
  ranks.job_id = job;
  ranks.program = program;
  ranks.command = options.command;
  ranks.run_dir = options.run_dir;
  ranks.coordinator_port = coordinator.port();
  ranks.world_size = options.nproc;
  for (int r = 0; r < options.nproc; ++r) ranks.slots.push_back(r);
  for (int s = 0; s < options.spares; ++s) ranks.spares.push_back(options.nproc + s);
  ranks.terminal = isatty(1) != 0;
  NodeAgent agent(ranks, options.recovery.enabled);
  bool stopping = false;
  while (!agent.done()) {
    std::vector<pollfd> fds{{signals.fd(), POLLIN, 0}};
    agent.add_fds(fds);
    coordinator.add_fds(fds);
    ::poll(fds.data(), fds.size(), 50);
    if (const int signal = signals.take(); signal != 0) {
      agent.clear_bar();
      if (!stopping) {
        std::fprintf(stderr, "troupe: %s: every rank finishes its step and writes a checkpoint; once more ends them at once\n",
                     strsignal(signal));
      }
      stopping = true;
      agent.asked_to_stop(signal);
    }
    coordinator.step([&] { agent.clear_bar(); });
    agent.step();
  }
  coordinator.step([&] { agent.clear_bar(); });
  return agent.verdict();
}

}  // namespace

int launch(const LauncherOptions& options) { return launch_here(options); }

int run_node(const NodeOptions& options) {
  const Signals signals;
  RankProcessOptions ranks;
  ranks.job_id = options.job_id;
  ranks.program = find_program(options.command[0]);
  ranks.command = options.command;
  ranks.run_dir = options.run_dir;
  ranks.host = options.host;
  ranks.address = options.address;
  ranks.coordinator_host = ranks.master_addr = options.coordinator_host;
  ranks.coordinator_port = options.coordinator_port;
  ranks.world_size = options.world_size;
  ranks.node_rank = options.node_rank;
  ranks.nodes = options.nodes;
  ranks.slots = options.slots;
  ranks.spares = options.spares;
  NodeAgent agent(ranks, options.recovery);
  while (!agent.done()) {
    std::vector<pollfd> fds{{signals.fd(), POLLIN, 0}, {0, POLLIN, 0}};
    agent.add_fds(fds);
    ::poll(fds.data(), fds.size(), 50);
    if (const int signal = signals.take(); signal != 0) agent.asked_to_stop(signal);
    if (fds[1].revents != 0) {
      char byte = 0;
      const auto n = ::read(0, &byte, 1);
      if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) {  // the launcher is gone
        agent.kill_all();
        return 70;
      }
      if (n == 1 && byte != '\n') agent.asked_to_stop(byte == 'T' ? SIGTERM : SIGINT);
    }
    agent.step();
  }
  return agent.verdict();
}

}  // namespace troupe
