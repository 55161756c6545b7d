#pragma once
#include <functional>
#include <string>

namespace troupe {

/// The socket for requests of this user's other processes on the launcher's host: a line, answered with a line. A Unix
/// socket without a file, named after the run's folder (device and inode). Root may send requests, too. One thread.
class RunSocket {
 public:
  /// Throws Error(unavailable).
  explicit RunSocket(const std::string& folder);
  ~RunSocket();
  RunSocket(const RunSocket&) = delete;
  RunSocket& operator=(const RunSocket&) = delete;
  int fd() const noexcept { return fd_; }  ///< readable when there is a request
  /// Answers the next waiting request, if there is one. Waits at most 0.2 s for its line.
  void step(const std::function<std::string(const std::string& line)>& answer);

 private:
  int fd_ = -1;
};

/// The answer of the run's launcher; empty: none takes requests. Throws Error(timeout) if it does not answer within 5
/// s.
std::string ask_run(const std::string& folder, const std::string& line);

}  // namespace troupe
