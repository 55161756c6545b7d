#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tensor_io/base/trace.hpp"

namespace troupe {

/// What Kineto recorded once: an operator, a call into the CUDA runtime or driver, or something that ran on the device.
struct KinetoActivity {
  enum class Kind : std::uint8_t { operation, launch, device };
  Kind kind = Kind::operation;
  std::string name;
  std::int64_t begin_ns = 0, end_ns = 0;  ///< steady clock
  /// Of an operator, and of a call within one: LibTorch's number of the thread; 0: a call that no operator made.
  std::uint64_t thread = 0;
  /// Of a call: the system's number of its thread, or where Kineto does not know that the lower half of pthread_self().
  /// Of what ran on the device: its stream.
  std::int64_t resource = -1;
  std::int64_t correlation = -1;  ///< a call's is that of what it started
};

/// Operators go to the tracks `operators`, with the calls within; other calls to the track of the thread that made
/// them, where that is an actor's, else to `launches`: NCCL starts its kernels from threads of its own. What ran on the
/// device goes to `device`. Activities from before the recorder's window are left out.
void add_activities(const std::vector<KinetoActivity>& activities, TraceRecorder& recorder);

}  // namespace troupe
