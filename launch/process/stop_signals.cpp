#include "launch/process/stop_signals.hpp"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "tensor_io/base/error.hpp"

namespace troupe {

StopSignals::StopSignals(std::optional<StopRequest::Clock::time_point> stop_at) : stop_at_(stop_at) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    if (!is_ignored(number)) sigaddset(&set, number);
  }
  sigprocmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd_ < 0) throw Error(ErrorCode::unavailable, "signalfd", std::strerror(errno));
}

StopSignals::~StopSignals() { ::close(fd_); }

StopSignals::Request StopSignals::take() {
  signalfd_siginfo info{};
  while (::read(fd_, &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGCHLD) continue;
    if (const auto request = judge(static_cast<int>(info.ssi_signo)); request.signal != 0) return request;
  }
  if (!stop_at_ || StopRequest::Clock::now() < *stop_at_) return {};
  stop_at_.reset();
  const auto request = judge(SIGTERM);
  return request.at_once ? Request{} : Request{request.signal, false, true};  // it stops already
}

StopSignals::Request StopSignals::judge(int number) {
  const auto meaning = request_.add(number, StopRequest::Clock::now());
  return {meaning == StopRequest::Meaning::same ? 0 : number, meaning == StopRequest::Meaning::at_once};
}

bool is_ignored(int number) {
  struct sigaction action {};
  return sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

std::string signal_name(int number) {
  const char* name = sigabbrev_np(number);
  return name == nullptr ? "signal " + std::to_string(number) : std::string("SIG") + name;
}

std::chrono::milliseconds time_to_stop(std::chrono::milliseconds left) {
  constexpr std::chrono::milliseconds kMargin = std::chrono::minutes(2);
  return left - std::min(kMargin, left / 5);
}

void say_stopping(const StopSignals::Request& request) {
  std::fprintf(stderr,
               "troupe: %s: every rank finishes its step and writes a checkpoint; a second signal, at least a second "
               "later, ends them at once\n",
               request.by_time ? "the time limit is near" : signal_name(request.signal).c_str());
}

void say_leaving(int number) {
  std::fprintf(
      stderr,
      "troupe: %s: this node's ranks leave the job after their step, and the others go on; a second signal, at "
      "least a second later, ends them at once\n",
      signal_name(number).c_str());
}

void say_ended_at_once(int number) {
  std::fprintf(stderr,
               "troupe: the ranks were ended at once on a second signal (%s): what they did since their last "
               "checkpoint is lost\n",
               signal_name(number).c_str());
}

}  // namespace troupe
