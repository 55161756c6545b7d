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

/// The collectives that are in the stream and not over. A device says nothing when a peer does not come: so one thread
/// looks, each 10 ms while there are any, whether the oldest has its deadline behind it, or NCCL an error. It also
/// keeps the tensors alive until they are no longer used, by their events: what LibTorch's record_stream would do by
/// holding memory back for an unknown time. It does not drop them itself: to free memory of NCCL's waits
/// for all that the device does, a collective that hangs included, and the deadline would not be seen.
class NcclFlights {
 public:
  struct Options {
    c10::Device device = c10::kCPU;
    std::chrono::milliseconds timeout{60'000};
    std::function<std::optional<ErrorReport>()> background_failure;  ///< asked at each look
    std::function<void(const ErrorReport&)> fail;                    ///< once; the watching thread's
    std::function<std::chrono::steady_clock::time_point()> now = [] { return std::chrono::steady_clock::now(); };
    bool own_thread = true;  ///< false: somebody calls look()
  };

  explicit NcclFlights(Options options);
  ~NcclFlights();
  NcclFlights(const NcclFlights&) = delete;
  NcclFlights& operator=(const NcclFlights&) = delete;

  /// What `stream` holds by now is `record`'s, and uses the memory of `tensors`; it keeps the memory alone, since a
  /// tensor's graph may hold the communicator, and with it these flights. `user`, where there is one, waits for its end: here,
  /// since a flight that is over may be looked at, and its event be gone, before this returns. Drops the memory of
  /// flights that are over.
  void add(const CollectiveRecord& record, const DeviceStream& stream, const std::vector<at::Tensor>& tensors,
           const DeviceStream* user = nullptr);
  /// Finds what is over, and says what has failed. Nothing a second time.
  void look();
  std::size_t count() const;
  /// After an abort: nothing is waited for any more, but memory stays until the device says that it is not used.
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
