#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace troupe {

/// Every failure that a user can meet, by its remedy. `exit_code` maps it to the process's exit status.
enum class ErrorCode : std::uint8_t {
  ok = 0,
  usage,        ///< a flag, a config key or a call that cannot mean anything (exit 2)
  bad_data,     ///< a file whose content is wrong (exit 65)
  mismatch,     ///< ranks disagree: layout, collective, config, version (exit 65)
  unavailable,  ///< a host, a port, a device or a library is not there (exit 69)
  io,           ///< the operating system refused to read or write (exit 74)
  timeout,      ///< a deadline passed (exit 70)
  aborted,      ///< another failure freed this waiter; its reason is the cause (exit 70)
  peer_lost,    ///< another rank, or the coordinator, is gone (exit 70)
  not_finite,   ///< a loss or a gradient is NaN or infinite, and the policy is to stop (exit 65)
  user,         ///< an exception in the user's model, loss or data set (exit 1)
  interrupted,  ///< Ctrl-C or SIGTERM (exit 130 or 143)
  parked,       ///< too few ranks are left to go on; the state was saved, try again (exit 75)
  state_lost,   ///< no rank that is left has the whole state: a checkpoint is needed (exit 75)
  fenced,       ///< the job goes on without this process (exit 76)
  internal,     ///< a bug in Troupe (exit 70)
  device_lost,  ///< the GPU or its driver failed: this process cannot use it again, another one may (exit 70)
};

/// The name of the code in messages: `bad data`.
std::string_view to_string(ErrorCode code) noexcept;

/// The content of a failure: the rank and actor, the place in the run, the operation, the cause and the remedy. Empty
/// and negative fields are not printed.
struct ErrorReport {
  ErrorCode code = ErrorCode::internal;
  int rank = -1;
  std::string actor;
  std::int64_t step = -1;
  std::string operation;
  std::string cause;
  std::string remedy;

  /// One line: `rank 1, reducer, step 12: all_reduce of bucket 3: cause; remedy`.
  std::string to_string() const;
};

/// Whether another generation without the rank at fault may go on: a peer is gone, or did not come in time.
bool may_be_recovered(ErrorCode code) noexcept;

/// The exit status of a process that ends for this reason. An interrupt is 130; the caller returns 143 if it knows that
/// it was SIGTERM.
int exit_code(ErrorCode code) noexcept;

/// The one exception type of the library. `what()` is the report on one line.
class Error : public std::runtime_error {
 public:
  explicit Error(ErrorReport report);
  Error(ErrorCode code, std::string operation, std::string cause, std::string remedy = {});

  /// All fields of the error.
  const ErrorReport& report() const noexcept { return report_; }
  /// The code of the report.
  ErrorCode code() const noexcept { return report_.code; }

 private:
  ErrorReport report_;
};

}  // namespace troupe
