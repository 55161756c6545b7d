#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tensor_io/base/error.hpp"
#include "tensor_io/communicator/nccl/nccl_api.hpp"
#include "tensor_io/device/device_stream.hpp"

namespace troupe {

/// Time in a communicator's life: a test makes it pass.
struct NcclClock {
  std::function<std::chrono::steady_clock::time_point()> now = [] { return std::chrono::steady_clock::now(); };
  /// Between two looks in a wait that began then.
  std::function<void(std::chrono::steady_clock::time_point began)> pause = &pause_between_looks;
};

struct NcclLifeOptions {
  std::shared_ptr<NcclApi> api;
  std::string name;  ///< of the communicator, in errors
  std::chrono::milliseconds timeout{60'000};
  NcclClock clock;
};

/// One NCCL communicator from its first call to its last.
///
/// NCCL has no deadlines, and its calls may hang: with a peer that never comes, in an abort while another thread
/// launches, in a destroy after an error. So it runs in its non-blocking mode, and every wait is ours:
///
///     none --connect--> connecting --success--> ready --end--> ended
///                            |                    |
///                            +--error, deadline, abort--> failed --(its own thread aborts)--> ended
///
/// 1. Each call is waited for by polling async_error, until the deadline, whatever it returned. Calls of other threads
///    wait for that: memory may be given back by any of them.
/// 2. The first failure wins; after it nothing but abort is called. Destroy never follows an error. Nothing
///    is revoked: NCCL 2.28's revoke frees the pending group, which its abort then reads
///    (github.com/NVIDIA/nccl/pull/2251).
/// 3. abort() returns at once: NCCL's abort runs on its own thread. So all communicators get their abort before
///    any is waited for (one's abort may need the other's).
///    All waits in here end at their next look.
/// 4. The end waits 5 s for that thread at most, and then leaves the memory to the process's end.
class NcclLife {
 public:
  explicit NcclLife(NcclLifeOptions options);
  ~NcclLife();
  NcclLife(const NcclLife&) = delete;
  NcclLife& operator=(const NcclLife&) = delete;

  /// Collective. Throws Error(timeout) if a rank did not come.
  void connect(int world_size, int rank, const std::string& id);
  /// Collective over this one's ranks: the group of the same color, nullptr for a negative one.
  std::unique_ptr<NcclLife> split(int color, int key, const std::string& name);

  /// Makes `calls`, which launch work of one collective, as one group, and waits until NCCL has put it into the stream.
  /// `what` is for errors.
  using Calls = std::function<NcclResult(NcclApi& api, NcclComm comm)>;
  void launch(const std::string& what, const Calls& calls);
  /// One management call (a window, for example), until it is over. NCCL goes on with a call that has failed for us:
  /// `used` holds the memory of the call, and lives until the abort is over.
  void manage(const std::string& what, const Calls& calls, const std::shared_ptr<void>& used = nullptr);
  /// The memory of a launch that failed, likewise.
  void keep(std::shared_ptr<void> used);

  /// The failure in the background, if there was one. Any thread.
  std::optional<ErrorReport> background_failure();
  /// Any thread, at once.
  void abort() noexcept;
  bool ready() const noexcept;
  NcclApi& api() const noexcept { return *options_.api; }
  std::shared_ptr<NcclApi> shared_api() const noexcept { return options_.api; }

 private:
  enum class State : std::uint8_t { none, connecting, ready, failed, ended };
  struct Shared;
  NcclLife(NcclLifeOptions options, NcclComm comm);
  /// Polls until the call is over. Throws after a failure, having aborted.
  void settle(const std::string& what, NcclResult result, std::chrono::milliseconds timeout);
  void call(const std::string& what, std::chrono::milliseconds timeout, const Calls& calls);
  [[noreturn]] void fail(const ErrorReport& report);

  NcclLifeOptions options_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace troupe
