#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "tensor_io/base/error.hpp"
#include "tensor_io/communicator/collective_ledger.hpp"
#include "tensor_io/device/device_stream.hpp"

namespace troupe {

/// The collectives that are in the stream and not over. A device reports nothing if a peer does not come. So one thread
/// checks, each 10 ms while there are any, whether the oldest is past its deadline, or NCCL has an error. The thread
/// also keeps the tensors alive until they are no longer used, by their events; LibTorch's record_stream would hold
/// memory back for an unknown time. It does not drop them itself: freeing memory of NCCL's waits for all work of the
/// device, also for a collective that hangs, and the deadline would not be seen.
class NcclFlights {
 public:
  struct Options {
    c10::Device device = c10::kCPU;
    std::chrono::milliseconds timeout{60'000};
    std::function<std::optional<ErrorReport>()> background_failure;  ///< called at each look
    std::function<void(const ErrorReport&)> fail;                    ///< once; the watching thread's
    std::function<std::chrono::steady_clock::time_point()> now = [] { return std::chrono::steady_clock::now(); };
    bool own_thread = true;  ///< false: the owner calls look()
  };

  explicit NcclFlights(Options options);
  ~NcclFlights();
  NcclFlights(const NcclFlights&) = delete;
  NcclFlights& operator=(const NcclFlights&) = delete;

  /// The present work in `stream` is `record`'s, and uses the memory of `tensors`. Only the memory is kept: a tensor's
  /// graph may hold the communicator, and so these flights. `user`, if there is one, waits for its end. It does so in
  /// here: a flight that is over may be looked at, and its event be gone, before this returns. Drops the memory of
  /// flights that are over.
  void add(const CollectiveRecord& record, const DeviceStream& stream, const std::vector<at::Tensor>& tensors,
           const DeviceStream* user = nullptr);
  /// Finds flights that are over, and reports failures. Nothing a second time.
  void look();
  std::size_t count() const;
  /// After an abort: waits for nothing any more, but memory stays until the device says that it is not used.
  void give_up();
  /// The watching thread has ended when this returns.
  void stop() noexcept;

 private:
  struct Flight {
    CollectiveRecord record;
    DeviceEvent end;
    std::chrono::steady_clock::time_point launched;
    std::vector<c10::Storage> memory;
  };
  void watch();

  const Options options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<Flight> flights_;      // in launch order, which is the stream's
  std::vector<DeviceEvent> spare_;  // events are made once
  std::vector<c10::Storage> over_;  // of flights that are over
  bool failed_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace troupe
