#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tensor_io/base/trace.hpp"

namespace troupe {

/// One record of Kineto: an operator, a call into the CUDA runtime or driver, or work on the device.
struct KinetoActivity {
  enum class Kind : std::uint8_t { operation, launch, device };
  Kind kind = Kind::operation;
  std::string name;
  std::int64_t begin_ns = 0, end_ns = 0;  ///< steady clock
  /// Of an operator, and of a call within one: LibTorch's number of the thread; 0: a call that no operator made.
  std::uint64_t thread = 0;
  /// Of a call: the system's number of its thread, or, if Kineto does not know that, the lower half of pthread_self().
  /// Of work on the device: its stream.
  std::int64_t resource = -1;
  std::int64_t correlation = -1;  ///< a call's is that of the work it started
};

/// Operators go to the tracks `operators`, with the calls within; other calls to the track of the calling thread, if
/// that is an actor's, else to `launches`: NCCL starts its kernels from its own threads. Work on the device goes to
/// `device`. Activities from before the recorder's window are left out.
void add_activities(const std::vector<KinetoActivity>& activities, TraceRecorder& recorder);

}  // namespace troupe
