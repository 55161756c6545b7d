#include "launch/launcher/coordinator_child.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "launch/launcher/process_words.hpp"
#include "launch/network/actor_system.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr std::size_t kStarts = 5;  // within a minute, one after the other
constexpr std::chrono::milliseconds kFirstPause{100}, kLongestPause{5'000};
constexpr auto kStartTime = 30s, kSilence = 3s, kLastWords = 2s;
constexpr auto kOneLook = 200ms;  // between two looks: longer, and it is this process that stood still

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
    read_words();
    look_for_silence([] {});
    if (!child_->poll_exit()) continue;
    std::string reason(1023, '\0');
    const auto length = ::read(child_->stderr_fd(), reason.data(), reason.size());
    reason.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
    if (reason.ends_with('\n')) reason.pop_back();
    start_again(reason, [] {});
    if (next_start_) start();
  }
}

void CoordinatorChild::add_fds(std::vector<pollfd>& fds) const {
  if (child_->stdout_fd() >= 0) fds.push_back({child_->stdout_fd(), POLLIN, 0});
  if (child_->stderr_fd() >= 0) fds.push_back({child_->stderr_fd(), POLLIN, 0});
}

void CoordinatorChild::step(const std::function<void()>& before_line) {
  if (next_start_) {
    if (Clock::now() >= *next_start_) start();
    return;
  }
  drain(before_line);
  read_words();
  look_for_silence(before_line);
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

// It has ended. Throws where the job's first does not start.
void CoordinatorChild::start_again(const std::string& reason, const std::function<void()>& before_line) {
  const int status = *child_->poll_exit();
  const auto now = Clock::now();
  std::erase_if(starts_, [&](const auto& at) { return now - at > 60s; });
  const bool first = process_.before == 0 && starting_, often = starts_.size() >= kStarts;
  if (starting_ && (!process_.recovery.enabled || (first && (often || !WIFSIGNALED(status)))))
    throw Error(ErrorCode::unavailable, "coordinator",
                "it did not start" + (reason.empty() ? " (" + describe_wait_status(status) + ")" : ": " + reason));
  failures_ = starting_ ? failures_ + 1 : 0;
  auto pause = first || failures_ == 0 ? 0ms : std::min(kFirstPause * (1 << std::min(failures_ - 1, 8)), kLongestPause);
  if (often) pause = kLongestPause;
  before_line();
  std::fprintf(stderr, "troupe: the coordinator %s (%s)%s\n", starting_ && !first ? "did not start" : "died",
               describe_wait_status(status).c_str(),
               pause > 0ms
                   ? (": the ranks keep training, the next try is in " + std::to_string(pause.count()) + " ms").c_str()
                   : "");
  if (!process_.recovery.enabled) return;
  if (!first) ++process_.before;
  next_start_ = now + pause;
  if (pause == 0ms) start();
}

void CoordinatorChild::start() {
  starts_.push_back(Clock::now());
  next_start_.reset();
  if (options_.keys && port_ > 0) {
    process_.port = coordinator_port(static_cast<std::uint16_t>(port_), failures_);
    process_.moved = process_.port != port_;
  }
  process_.life = 1'000 * static_cast<std::uint64_t>(options_.starts_over) + static_cast<std::uint64_t>(lives_);
  ChildProcess::Options child;
  child.arguments = {options_.troupe_program, "coordinator", word_of(process_)};
  child.environment = {{"TROUPE_SLOT", "coordinator"},
                       {"TROUPE_RESTARTS", std::to_string(lives_++)}};  // fault_point asks for them
  child.keep_stdin_open = true;
  child_ = std::make_unique<ChildProcess>(child);
  if (options_.keys) child_->write_stdin(options_.keys->framed());
  words_ = {};
  starting_ = true;
  silent_ = Clock::duration(0);
  last_look_ = Clock::now();
}

// What it says first is its port; later lines are its pulse.
void CoordinatorChild::read_words() {
  if (child_->stdout_fd() < 0) return;
  const auto hear = [&](std::string_view line, bool) {
    silent_ = Clock::duration(0);
    if (starting_) take_port(std::string(line));
  };
  if (!words_.drain(child_->stdout_fd(), hear)) child_->close_stdout();
}

void CoordinatorChild::take_port(const std::string& line) {
  if (std::sscanf(line.c_str(), "port %d", &process_.port) != 1)
    throw Error(ErrorCode::internal, "coordinator", "it printed '" + line + "' instead of its port");
  starting_ = false;
  if (port_ == 0) port_ = process_.port;
  if (process_.port != port_) std::fprintf(stderr, "troupe: the coordinator listens on port %d now\n", process_.port);
}

// One that hangs is ended, as if it had died.
void CoordinatorChild::look_for_silence(const std::function<void()>& before_line) {
  const auto now = Clock::now();
  silent_ += std::min<Clock::duration>(now - std::exchange(last_look_, now), kOneLook);
  const auto most = starting_ ? Clock::duration(kStartTime) : Clock::duration(kSilence);
  if (silent_ <= most || !(starting_ || process_.recovery.enabled)) return;
  silent_ = Clock::duration(0);
  before_line();
  std::fprintf(stderr, "troupe: the coordinator has been silent for %d s and is killed\n", static_cast<int>(most / 1s));
  child_->signal(SIGKILL);
  if (starting_ && process_.before == 0)
    throw Error(ErrorCode::unavailable, "coordinator",
                "it did not start within " + std::to_string(kStartTime / 1s) + " s");
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
