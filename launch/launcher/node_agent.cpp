#include "launch/launcher/node_agent.hpp"

#include <signal.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstring>

#include "launch/launcher/failure_report.hpp"
#include "tensor_io/base/planned_kill.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

constexpr auto kPeersEnd = 3s;      // after a failure the coordinator ends the others within 1 s; then SIGTERM ...
constexpr auto kPeersKilled = 2s;   // ... then SIGKILL
constexpr auto kGroup = 200ms;      // a signal to a whole group reaches the launcher, too: the job is to stop
constexpr auto kVerdict = 300ms;    // for the coordinator's last word, after the last rank ended
constexpr auto kReplacement = 10s;  // for its word on who comes next, while ranks elsewhere go on

}  // namespace

NodeAgent::NodeAgent(const RankProcessOptions& options)
    : options_(options),
      processes_(
          options, [this](const ProcessId& process, int status) { exited(process, status); },
          [this] { patience_.still_saving(Clock::now()); }) {
  processes_.start_all();
  AgentLink::Options link;
  link.job_id = options_.run.job_id;
  link.host = options_.host;
  link.coordinator_host = options_.coordinator_host;
  link.coordinator_port = static_cast<std::uint16_t>(options_.coordinator_port);
  if (!options_.keys.empty()) link.keys = KeyFolder::read(options_.keys);
  link_.emplace(link, processes_.running());
}

void NodeAgent::add_fds(std::vector<pollfd>& fds) const {
  processes_.add_fds(fds);
  fds.push_back({link_->fd(), POLLIN, 0});
}

void NodeAgent::step() {
  processes_.step();
  for (const auto& command : link_->take()) obey(command);
  const auto now = Clock::now();
  if (end_by_ && now > *end_by_) processes_.signal_all(now > *end_by_ + kPeersKilled ? SIGKILL : SIGTERM);
  if (leave_at_ && now > *leave_at_) {
    leave_at_.reset();
    if (stop_signal_ == 0) link_->leave(leaves_);
  }
  if (ends_here() && patience_.is_over(now)) processes_.signal_all(SIGKILL);
}

void NodeAgent::obey(const AgentLink::Command& command) {
  if (const auto* start = std::get_if<StartRank>(&command)) {
    if (over_ || ends_here()) return;
    try {
      processes_.start(start->process, start->restarts);
      link_->running(processes_.running());
    } catch (const std::exception& error) {
      std::fprintf(stderr, "troupe: slot %d was not started: %s\n", start->process.slot, error.what());
      link_->exited(start->process, 69 << 8);
    }
  } else if (const auto* kill = std::get_if<KillRank>(&command)) {
    processes_.kill(kill->process);
  } else if (const auto* over = std::get_if<JobOver>(&command)) {
    over_ = *over;
    if (over->exit_code != 0 && !end_by_) end_by_ = Clock::now() + kPeersEnd;
  }
}

void NodeAgent::exited(const ProcessId& process, int wait_status) {
  last_exit_ = Clock::now();
  link_->running(processes_.running());
  const int asked = stop_signal_ == 0 && !leaves_.empty() ? SIGTERM : stop_signal_;
  const bool ended_by_us = asked != 0 && wait_status == SIGKILL && processes_.was_killed(process.slot);
  link_->exited(process, ended_by_us ? asked : wait_status);  // the coordinator hears of what asked for it
  if (wait_status != 0 && !options_.recovery && !end_by_) end_by_ = Clock::now() + kPeersEnd;
}

void NodeAgent::asked_to_stop(const StopSignals::Request& request) {
  if (request.signal == 0) return;
  if (request.at_once) {
    at_once_ = request.signal;
    return processes_.signal_all(SIGKILL);
  }
  stop_signal_ = request.signal;
  patience_.asked(Clock::now());
  // A program of ours takes SIGINT and SIGTERM for a request, unless they are ignored.
  const int usual = stop_signal_ == SIGHUP ? SIGTERM : stop_signal_;
  processes_.signal_all(is_ignored(usual) ? SIGINT : usual);
}

void NodeAgent::asked_to_leave(const StopSignals::Request& request, const std::string& why) {
  if (request.at_once || !options_.recovery) return asked_to_stop(request);
  if (ends_here()) return;
  leaves_ = why;
  patience_.asked(Clock::now());
  leave_at_ = Clock::now() + kGroup;
}

bool NodeAgent::done() const {
  if (processes_.alive() > 0) return false;
  const auto since = Clock::now() - last_exit_;
  // A grandchild may hold a pipe open for ever.
  if (processes_.open_pipes() > 0 && since < 2s) return false;
  if (over_ || ends_here() || link_->lost()) return true;
  // All ended well, or nothing may come back: the coordinator says so at once, unless the ranks never spoke to it.
  const bool failed = !processes_.failures().empty();
  return since >
         (failed && options_.recovery ? std::chrono::duration_cast<std::chrono::milliseconds>(kReplacement) : kVerdict);
}

void NodeAgent::say_end() const {
  if (!options_.under_launcher) std::fprintf(stderr, "troupe: the job ended: %s\n", over_->report.to_string().c_str());
}

int NodeAgent::verdict() {
  processes_.clear_bar();
  if (over_ && over_->exit_code == 0) return stop_signal_ == 0 ? 0 : 128 + stop_signal_;
  if (at_once_ != 0) return say_ended_at_once(at_once_), 128 + at_once_;
  const auto& failures = processes_.failures();
  const bool ended_by_us = end_by_ && Clock::now() > *end_by_;
  // Its ranks have saved and say why it can't go on, as the coordinator does: none of them failed.
  const bool parks =
      over_ && (over_->exit_code == exit_code(ErrorCode::parked) || over_->report.code == ErrorCode::parked);
  const RankProcesses::Ended* root = nullptr;
  for (const auto& ended : failures) {
    const int code = exit_code_of_wait_status(ended.wait_status);
    if (parks && (code == exit_code(ErrorCode::parked) || code == 128 + SIGTERM)) continue;
    if (stop_signal_ != 0 && code == 128 + stop_signal_) continue;
    if (!leaves_.empty() && code == exit_code(ErrorCode::fenced)) continue;  // the job has gone on without it
    // One that hung until we ended it is no reason.
    if (ended_by_us && &ended != &failures.front() && (code == 128 + SIGTERM || code == 128 + SIGKILL)) continue;
    // The rank that failed of itself is worth more than one that was aborted because of it (exit 70), and the job's own
    // code decides.
    const int known = root == nullptr ? -1 : exit_code_of_wait_status(root->wait_status);
    const bool better = root == nullptr || (known == 70 && code != 70) ||
                        (over_ && over_->exit_code != 70 && code == over_->exit_code && known != code);
    if (better) root = &ended;
  }
  if (root == nullptr) {
    if (over_ && stop_signal_ == 0) say_end();
    if (over_ && over_->exit_code != 0 && stop_signal_ == 0) return over_->exit_code;
    return stop_signal_ == 0 ? 0 : 128 + stop_signal_;
  }
  const int code = exit_code_of_wait_status(root->wait_status);
  const bool mistake = code == exit_code(ErrorCode::usage) && root->last_line.starts_with("error: ") &&
                       !root->last_line.starts_with("error: rank ");
  const bool strange = WIFSIGNALED(root->wait_status) && WTERMSIG(root->wait_status) == SIGKILL && !root->killed_by_us;
  const auto how = describe_wait_status(root->wait_status) +
                   (strange && is_kill_planned(root->slot) ? "; TROUPE_FAULT names its slot"
                    : strange ? ", which this job did not send: perhaps out of memory, see dmesg"
                    : root->killed_by_us && ends_here()
                        ? ", since it neither ended nor saved for " + std::to_string(StopPatience::kTime.count()) +
                              " s after " + (leaves_.empty() ? signal_name(stop_signal_) : leaves_)
                        : "");
  const bool shown = root->last_line == processes_.last_shown();
  if (mistake) return code;  // the screen has it, and all ranks have made it
  std::fputs(describe_failure({root->slot, options_.host, how, root->log_path, shown ? "" : root->last_line},
                              options_.nodes > 1)
                 .c_str(),
             stderr);
  if (!parks) return code;
  // It ended because of how that rank did, and with a code that says more.
  say_end();
  return over_->exit_code;
}

}  // namespace troupe
