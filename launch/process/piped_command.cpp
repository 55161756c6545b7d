#include "launch/process/piped_command.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tensor_io/base/error.hpp"

extern char** environ;  // NOLINT: POSIX says so

namespace troupe {
namespace {

constexpr std::size_t kLongestLine = 1 << 20;
constexpr std::size_t kKeptErrors = 4096;

void close_once(int& fd) {
  if (fd >= 0) ::close(std::exchange(fd, -1));
}

}  // namespace

PipedCommand::PipedCommand(const std::vector<std::string>& arguments) {
  // A socket for its input: writing to a pipe that nobody reads any more would raise SIGPIPE in this whole process.
  int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1};
  int failure = 0;
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) != 0 || ::pipe2(out, O_CLOEXEC) != 0 ||
      ::pipe2(err, O_CLOEXEC) != 0)
    failure = errno;
  if (failure == 0) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[1], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    posix_spawn_file_actions_adddup2(&actions, err[1], 2);
    std::vector<char*> argv;
    for (const auto& word : arguments)
      argv.push_back(const_cast<char*>(word.c_str()));  // NOLINT: POSIX leaves them as they are
    argv.push_back(nullptr);
    failure = ::posix_spawnp(&pid_, argv[0], &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
  }
  close_once(in[1]);
  close_once(out[1]);
  close_once(err[1]);
  in_ = in[0], out_ = out[0], err_ = err[0];
  if (failure != 0) {
    close_once(in_);
    close_once(out_);
    close_once(err_);
    throw Error(ErrorCode::unavailable, arguments[0], std::string("cannot be started: ") + std::strerror(failure),
                "install it, or name its path");
  }
  ::fcntl(out_, F_SETFL, O_NONBLOCK);
  ::fcntl(err_, F_SETFL, O_NONBLOCK);
}

PipedCommand::PipedCommand(PipedCommand&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      in_(std::exchange(other.in_, -1)),
      out_(std::exchange(other.out_, -1)),
      err_(std::exchange(other.err_, -1)),
      output_(std::move(other.output_)),
      errors_(std::move(other.errors_)),
      status_(other.status_) {}

PipedCommand::~PipedCommand() {
  if (pid_ > 0 && !status_) finish(Clock::now() + std::chrono::seconds(1));
  close_once(in_);
  close_once(out_);
  close_once(err_);
}

bool PipedCommand::write_line(const std::string& line) {
  const auto text = line + "\n";
  for (std::size_t sent = 0; sent < text.size();) {
    const auto n = in_ < 0 ? -1 : ::send(in_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && in_ >= 0 && errno == EINTR) continue;
    if (n < 0) return false;
    sent += static_cast<std::size_t>(n);
  }
  return true;
}

void PipedCommand::read_some(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  pollfd ready[] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};  // poll passes over what is closed
  ::poll(ready, 2, static_cast<int>(std::clamp<long long>(left, 0, 1000)));
  char block[4096];
  for (int* fd : {&out_, &err_}) {
    if (*fd < 0) continue;
    const auto n = ::read(*fd, block, sizeof block);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n <= 0) {
      close_once(*fd);
      continue;
    }
    auto& text = fd == &out_ ? output_ : errors_;
    text.append(block, static_cast<std::size_t>(n));
    if (fd == &err_ && text.size() > kKeptErrors) text.erase(0, text.size() - kKeptErrors);
  }
}

std::optional<std::string> PipedCommand::read_line(Clock::time_point deadline) {
  for (;;) {
    if (const auto newline = output_.find('\n'); newline != std::string::npos) {
      auto line = output_.substr(0, newline);
      output_.erase(0, newline + 1);
      return line;
    }
    if (out_ < 0 || output_.size() > kLongestLine || Clock::now() >= deadline) return std::nullopt;
    read_some(deadline);
  }
}

int PipedCommand::finish(Clock::time_point deadline) {
  close_once(in_);
  while (!status_) {
    int status = 0;
    const auto ended = ::waitpid(pid_, &status, WNOHANG);
    if (ended == pid_ || (ended < 0 && errno != EINTR)) {
      status_ = ended == pid_ ? status : 0;
    } else if (Clock::now() >= deadline) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, &status, 0);
      status_ = status;
    } else {
      read_some(std::min(deadline, Clock::now() + std::chrono::milliseconds(20)));
      if (out_ < 0 && err_ < 0) ::usleep(5000);
    }
  }
  const auto soon = Clock::now() + std::chrono::milliseconds(200);  // a grandchild may hold the pipes open
  while ((out_ >= 0 || err_ >= 0) && Clock::now() < soon) read_some(soon);
  return *status_;
}

}  // namespace troupe
