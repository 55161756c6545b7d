#include "launch/loop/after_save.hpp"

#include <poll.h>

#include <csignal>
#include <utility>

#include "launch/process/child_process.hpp"
#include "launch/process/displayable.hpp"
#include "launch/process/our_variables.hpp"
#include "launch/process/output_lines.hpp"
#include "launch/process/still_saving.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr AfterSave::Milliseconds kLook{50};      // for an end, and for a stop
constexpr AfterSave::Milliseconds kGrace{5'000};  // from SIGTERM to SIGKILL
constexpr std::size_t kShown = 200;               // characters of the last line

// A place in this job: a program that the command starts is in none. The command itself is not to start for its saves.
const std::vector<std::string>& names_of_job() {
  static const std::vector<std::string> names = [] {
    auto all = job_variables();
    all.insert(all.end(), {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
                           "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TROUPE_AFTER_SAVE"});
    return all;
  }();
  return names;
}

// The last line that a command printed, on either stream.
class LastLine {
 public:
  void drain(ChildProcess& child) {
    const auto keep = [this](std::string_view text, bool) {
      if (text.find_first_not_of(" \t") != std::string_view::npos) line_ = text;
    };
    if (child.stdout_fd() >= 0 && !out_.drain(child.stdout_fd(), keep)) child.close_stdout();
    if (child.stderr_fd() >= 0 && !err_.drain(child.stderr_fd(), keep)) child.close_stderr();
  }
  // What has no end of line yet, too.
  std::string finish() {
    const auto keep = [this](std::string_view text, bool) { line_ = text; };
    out_.finish(keep);
    err_.finish(keep);
    return line_.empty() ? "" : ": " + displayable(line_, kShown);
  }

 private:
  OutputLines out_, err_;
  std::string line_;
};

std::string duration(AfterSave::Milliseconds time) {
  return time.count() % 1000 == 0 ? std::to_string(time.count() / 1000) + " s" : std::to_string(time.count()) + " ms";
}

}  // namespace

AfterSave::~AfterSave() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
    waiting_.reset();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void AfterSave::add(SavedStep saved) {
  {
    const std::scoped_lock lock(mutex_);
    if (stopping_) return;
    waiting_ = std::move(saved);
    if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  }
  changed_.notify_all();
}

std::vector<AfterSaveEnd> AfterSave::take_ended() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(ended_, {});
}

void AfterSave::wait() {
  std::unique_lock lock(mutex_);
  const auto is_idle = [this] { return !running_ && !waiting_; };
  while (!is_idle()) {
    options_.still_runs();
    changed_.wait_for(lock, kStillSavingEvery, is_idle);
  }
}

bool AfterSave::stopping() {
  const std::scoped_lock lock(mutex_);
  return stopping_;
}

// The child dies with the thread that forked it, so this one stays until the end.
void AfterSave::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return waiting_ || stopping_; });
    if (stopping_) return;
    const auto saved = *std::exchange(waiting_, std::nullopt);
    running_ = true;
    lock.unlock();
    auto end = run(saved);
    lock.lock();
    running_ = false;
    ended_.push_back(std::move(end));
    changed_.notify_all();
  }
}

AfterSaveEnd AfterSave::run(const SavedStep& saved) try {
  const auto name = "after_save, step " + std::to_string(saved.step) + ": ";
  ChildProcess child({.arguments = {"/bin/sh", "-c", options_.command},
                      .environment = {{"TROUPE_CHECKPOINT", saved.path},
                                      {"TROUPE_STEP", std::to_string(saved.step)},
                                      {"TROUPE_RUN_DIR", options_.run_dir}},
                      .without = names_of_job()});
  LastLine last;
  auto deadline = Clock::now() + options_.timeout;
  bool late = false;
  while (!child.poll_exit()) {
    if (stopping()) return {saved.step, false, name + "was stopped with the job"};  // the child's end is its object's
    if (Clock::now() >= deadline) {
      child.signal(late ? SIGKILL : SIGTERM);
      late = true;
      deadline = Clock::now() + kGrace;
    }
    pollfd output[] = {{child.stdout_fd(), POLLIN, 0}, {child.stderr_fd(), POLLIN, 0}};
    ::poll(output, 2, static_cast<int>(kLook.count()));
    last.drain(child);
  }
  last.drain(child);
  if (late) ::kill(-child.pid(), SIGKILL);  // what of its group did not heed SIGTERM
  const auto words = late ? "was stopped after " + duration(options_.timeout) + " (after_save_timeout)"
                          : describe_wait_status(*child.poll_exit());
  return {saved.step, !late && *child.poll_exit() == 0, name + words + last.finish()};
} catch (const Error& error) {
  return {saved.step, false, "after_save, step " + std::to_string(saved.step) + ": " + error.what()};
}

}  // namespace troupe
