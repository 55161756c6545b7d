#include "launch/launcher/coordinator_child.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <utility>

#include "launch/launcher/process_words.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr std::size_t kStarts = 5;  // within a minute
constexpr auto kStartTime = 30s, kLastWords = 2s;

}  // namespace

CoordinatorChild::CoordinatorChild(Options options) : process_(options.process), options_(std::move(options)) {
  if (process_.recovery.enabled) process_.journal = process_.run.folder + "/journal";
  process_.keys_on_stdin = options_.keys.has_value();
  std::error_code failure;
  std::filesystem::create_directories(process_.run.folder, failure);
  if (failure) throw Error(ErrorCode::io, process_.run.folder, failure.message(), "choose another --run-dir");
  std::filesystem::remove(process_.run.folder + "/journal", failure);  // of a job before
  start();
  while (starting_) {
    pollfd ready{child_->stdout_fd(), POLLIN, 0};
    ::poll(&ready, 1, 100);
    read_port();
    if (!child_->poll_exit()) continue;
    char reason[1024] = "";
    const auto length = ::read(child_->stderr_fd(), reason, sizeof reason - 1);
    start_again(length > 0 ? reason : "", [] {});
  }
}

void CoordinatorChild::add_fds(std::vector<pollfd>& fds) const {
  if (starting_) fds.push_back({child_->stdout_fd(), POLLIN, 0});
  if (child_->stderr_fd() >= 0) fds.push_back({child_->stderr_fd(), POLLIN, 0});
}

void CoordinatorChild::step(const std::function<void()>& before_line) {
  drain(before_line);
  if (starting_) read_port();
  if (child_->ended() || !child_->poll_exit()) return;
  drain(before_line);
  start_again("", before_line);
}

void CoordinatorChild::finish(const std::function<void()>& before_line) {
  child_->close_stdin();
  for (const auto deadline = Clock::now() + kLastWords; !child_->poll_exit() && Clock::now() < deadline;) {
    pollfd words{child_->stderr_fd(), POLLIN, 0};
    ::poll(&words, 1, 10);
    drain(before_line);
  }
  drain(before_line);
}

// It has ended. Throws where another start would end like this one.
void CoordinatorChild::start_again(const std::string& reason, const std::function<void()>& before_line) {
  const int status = *child_->poll_exit();
  const auto now = Clock::now();
  std::erase_if(starts_, [&](const auto& at) { return now - at > 60s; });
  const bool again = process_.recovery.enabled && starts_.size() < kStarts && !(silent_ && lives_ == 1);
  if (starting_ && !(again && WIFSIGNALED(status)))
    throw Error(ErrorCode::unavailable, "coordinator",
                "it did not start" + (reason.empty() ? " (" + describe_wait_status(status) + ")" : ": " + reason));
  before_line();
  std::fprintf(stderr, "troupe: the coordinator died (%s)\n", describe_wait_status(status).c_str());
  if (again) start();
}

void CoordinatorChild::start() {
  starts_.push_back(Clock::now());
  process_.life = static_cast<std::uint64_t>(1'000 * options_.starts_over + lives_);
  ChildProcess::Options child;
  child.arguments = {options_.troupe_program, "coordinator", word_of(process_)};
  child.environment = {{"TROUPE_SLOT", "coordinator"},
                       {"TROUPE_RESTARTS", std::to_string(lives_++)}};  // fault_point asks for them
  child.keep_stdin_open = true;
  child_ = std::make_unique<ChildProcess>(child);
  if (options_.keys) child_->write_stdin(options_.keys->framed());
  said_.clear();
  starting_ = true;
  silent_ = false;
}

// What it says first is its port. One that stays silent is ended, as if it had died.
void CoordinatorChild::read_port() {
  char block[256];
  const auto n = ::read(child_->stdout_fd(), block, sizeof block);
  if (n > 0) said_.append(block, static_cast<std::size_t>(n));
  if (said_.find('\n') != std::string::npos) {
    if (std::sscanf(said_.c_str(), "port %d", &process_.port) != 1)
      throw Error(ErrorCode::internal, "coordinator", "it said '" + said_ + "' instead of its port");
    starting_ = false;
  } else if (Clock::now() > starts_.back() + kStartTime && !std::exchange(silent_, true)) {
    std::fprintf(stderr, "troupe: the coordinator did not start within %d s\n", static_cast<int>(kStartTime.count()));
    child_->signal(SIGKILL);
  }
}

void CoordinatorChild::drain(const std::function<void()>& before_line) {
  if (child_->stderr_fd() < 0) return;
  const auto show = [&](std::string_view text, bool) {
    before_line();
    std::fprintf(stderr, "troupe: %.*s\n", static_cast<int>(text.size()), text.data());
    std::fflush(stderr);
  };
  if (!lines_.drain(child_->stderr_fd(), show)) child_->close_stderr();
}

}  // namespace troupe
