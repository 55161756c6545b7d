#pragma once
#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

/// A program that we talk to in lines, like an agent on another host through ssh. It is in our process group. With
/// this object its standard input ends; if it does not end within a second after that, it is killed. One thread at a
/// time.
class PipedCommand {
 public:
  using Clock = std::chrono::steady_clock;

  /// Throws Error(unavailable) if the program cannot be started.
  explicit PipedCommand(const std::vector<std::string>& arguments);
  ~PipedCommand();
  PipedCommand(PipedCommand&& other) noexcept;
  PipedCommand& operator=(PipedCommand&&) = delete;

  /// False once the program no longer reads.
  bool write_line(const std::string& line);
  /// The next line of its output, without the newline; nothing once the output has ended, or if none is whole by then.
  /// Lines of more than 1 MiB count as an end.
  std::optional<std::string> read_line(Clock::time_point deadline);
  /// Closes its standard input, waits for its end, then kills it. Its wait status.
  int finish(Clock::time_point deadline);
  /// The end of its standard error.
  const std::string& errors() const noexcept { return errors_; }

 private:
  void read_some(Clock::time_point deadline);

  pid_t pid_ = -1;
  int in_ = -1, out_ = -1, err_ = -1;
  std::string output_;
  std::string errors_;
  std::optional<int> status_;
};

}  // namespace troupe
