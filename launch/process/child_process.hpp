#pragma once
#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

/// A process that we started and watch. One thread only, which outlives it: PDEATHSIG fires when the forking thread
/// ends.
///
/// The child has its own process group (a Ctrl-C on the terminal reaches it through us), dies with us in every case,
/// reads nothing, and writes into pipes.
class ChildProcess {
 public:
  struct Options {
    std::vector<std::string> arguments;              ///< argv; [0] is an executable's path. Never a shell.
    std::map<std::string, std::string> environment;  ///< added to ours
    bool keep_stdin_open = false;                    ///< a pipe that closes when we do, instead of /dev/null
    std::vector<std::string> without = {};           ///< variables of ours that it does not get
  };
  /// Throws Error(unavailable) if the program cannot be started; nothing is left behind then.
  explicit ChildProcess(const Options& options);
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;

  pid_t pid() const noexcept { return pid_; }
  int stdout_fd() const noexcept { return out_; }  ///< non-blocking
  int stderr_fd() const noexcept { return err_; }  ///< non-blocking
  void close_stdout();
  void close_stderr();
  void close_stdin();
  /// If its standard input was kept open; lost if it does not read.
  void write_stdin(const std::string& text) const;
  /// To the child's process group, if it is still there.
  void signal(int number) const;
  /// The wait status once it has ended.
  std::optional<int> poll_exit();
  bool ended() const noexcept { return status_.has_value(); }

 private:
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1, err_ = -1;
  std::optional<int> status_;
};

/// `exit code 3`, `signal 9 (Killed)`.
std::string describe_wait_status(int status);
/// The shell's convention: the exit code, or 128 + signal.
int exit_code_of_wait_status(int status);
/// The executable for `name` (PATH searched if it has no slash). Throws Error(unavailable).
std::string find_program(const std::string& name);

}  // namespace troupe
