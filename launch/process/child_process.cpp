#include "launch/process/child_process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

struct Pipe {
  int read = -1, write = -1;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
      throw Error(ErrorCode::unavailable, "pipe", std::strerror(errno), "raise the limit of open files (ulimit -n)");
    read = ends[0];
    write = ends[1];
  }
};

void close_fd(int& fd) {
  if (fd >= 0) ::close(fd);
  fd = -1;
}

}  // namespace

ChildProcess::ChildProcess(const Options& options) {
  Pipe out, err, in, failure;
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry), name = text.substr(0, text.find('='));
    const bool withheld = std::find(options.without.begin(), options.without.end(), name) != options.without.end();
    if (!withheld && !options.environment.contains(name)) environment.push_back(text);
  }
  for (const auto& [name, value] : options.environment) environment.push_back(name + "=" + value);
  std::vector<char*> argv, envp;
  for (const auto& argument : options.arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  for (const auto& entry : environment) envp.push_back(const_cast<char*>(entry.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);

  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0)
    throw Error(ErrorCode::unavailable, "fork", std::strerror(errno),
                "raise the limit of processes (ulimit -u, the container's limit of pids)");
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);  // the parent ended before we asked
    setpgid(0, 0);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    ::signal(SIGPIPE, SIG_DFL);  // what is ignored stays so in the program
    ::close(out.read);           // makes room for /dev/null where no descriptor is left
    const int input = options.keep_stdin_open ? in.read : ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (input >= 0 && dup2(input, 0) >= 0 && dup2(out.write, 1) >= 0 && dup2(err.write, 2) >= 0) {
      ::close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);  // what other threads open meanwhile
      execve(argv[0], argv.data(), envp.data());
    }
    const int code = errno;
    [[maybe_unused]] const auto written = ::write(failure.write, &code, sizeof code);
    _exit(127);
  }
  close_fd(out.write);
  close_fd(err.write);
  close_fd(in.read);
  close_fd(failure.write);
  if (!options.keep_stdin_open) close_fd(in.write);
  in_ = in.write;
  out_ = out.read;
  err_ = err.read;
  int code = 0;
  const bool failed = ::read(failure.read, &code, sizeof code) == sizeof code;  // closed by a successful exec
  close_fd(failure.read);
  if (failed) {
    int status = 0;
    waitpid(pid_, &status, 0);
    status_ = status;
    close_fd(in_);
    close_fd(out_);
    close_fd(err_);
    throw Error(ErrorCode::unavailable, options.arguments[0], std::string("cannot be started: ") + std::strerror(code));
  }
  fcntl(out_, F_SETFL, O_NONBLOCK);
  fcntl(err_, F_SETFL, O_NONBLOCK);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      in_(std::exchange(other.in_, -1)),
      out_(std::exchange(other.out_, -1)),
      err_(std::exchange(other.err_, -1)),
      status_(other.status_) {}

ChildProcess::~ChildProcess() {
  if (pid_ > 0 && !status_) {
    signal(SIGKILL);
    int status = 0;
    waitpid(pid_, &status, 0);
  }
  close_fd(in_);
  close_fd(out_);
  close_fd(err_);
}

void ChildProcess::close_stdout() { close_fd(out_); }
void ChildProcess::close_stderr() { close_fd(err_); }
void ChildProcess::close_stdin() { close_fd(in_); }

void ChildProcess::write_stdin(const std::string& text) const {
  if (in_ >= 0) [[maybe_unused]]
    const auto written = ::write(in_, text.data(), text.size());
}

void ChildProcess::signal(int number) const {
  if (pid_ <= 0 || status_) return;
  if (::kill(-pid_, number) != 0) ::kill(pid_, number);  // before its setpgid there is no group yet
}

std::optional<int> ChildProcess::poll_exit() {
  int status = 0;
  if (!status_ && waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
  return status_;
}

std::string describe_wait_status(int status) {
  if (WIFSIGNALED(status))
    return "signal " + std::to_string(WTERMSIG(status)) + " (" + strsignal(WTERMSIG(status)) + ")";
  return "exit code " + std::to_string(WEXITSTATUS(status));
}

int exit_code_of_wait_status(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

std::string find_program(const std::string& name) {
  const auto runnable = [](const std::string& path) {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && ::access(path.c_str(), X_OK) == 0;
  };
  if (name.find('/') != std::string::npos) {
    if (runnable(name)) return name;
    struct stat info {};
    const bool there = ::stat(name.c_str(), &info) == 0;
    throw Error(ErrorCode::unavailable, name, there ? "it is not an executable file" : "there is no such program");
  }
  std::string path = std::getenv("PATH") ? std::getenv("PATH") : "/usr/bin:/bin";
  for (std::size_t start = 0; start <= path.size();) {
    auto end = path.find(':', start);
    if (end == std::string::npos) end = path.size();
    auto candidate = path.substr(start, end - start) + "/" + name;
    if (runnable(candidate)) return candidate;
    start = end + 1;
  }
  throw Error(ErrorCode::unavailable, name, "there is no such program on the PATH",
              "for a program in this folder write ./" + name);
}

}  // namespace troupe
