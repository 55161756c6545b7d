#pragma once
#include <chrono>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "launch/doctor/doctor.hpp"
#include "launch/process/piped_command.hpp"

namespace troupe {

/// The other end of DoctorSession, on each host: answers every line of `in` with one line on `out`, until `in` ends.
/// First it sends a greeting.
///   facts RUN_DIR | clock | resolve NAME | serve ADDRESS | measure ADDRESS PORT TOKEN MILLISECONDS
void serve_doctor(std::istream& in, std::ostream& out, const std::string& version);

/// A conversation with serve_doctor in another process. Its answers are not trusted: each is bounded and checked.
/// Throws Error(unavailable) if it does not answer, with its standard error as the cause.
class DoctorSession {
 public:
  /// Starts `arguments`, without waiting for it.
  explicit DoctorSession(const std::vector<std::string>& arguments) : command_(arguments) {}

  /// Waits for its greeting.
  void greet(std::chrono::seconds patience);
  HostFacts facts(const std::string& run_dir);
  /// How far its clock is ahead of ours, by the quickest of several round trips.
  std::pair<std::chrono::nanoseconds, std::chrono::nanoseconds> clock();
  std::vector<std::string> resolve(const std::string& name, std::string& why);
  struct Served {
    int port = 0;
    std::string token;
  };
  Served serve(const std::string& address);
  LinkMeasure measure(const std::string& address, const Served& served, std::chrono::milliseconds duration);

  /// After a failure: its exit status, and its standard error.
  std::pair<int, std::string> ending();

 private:
  /// The answer to `request` without its first word, which must be `expected`; `error ...` is thrown.
  std::string ask(const std::string& request, const std::string& expected,
                  std::chrono::seconds patience = std::chrono::seconds(20));

  PipedCommand command_;
  bool silent_ = false;  // it owes an answer: a later one could be mistaken for another
};

}  // namespace troupe
