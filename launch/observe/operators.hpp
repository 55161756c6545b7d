#pragma once
#include <cstdint>
#include <memory>

#include "tensor_io/base/trace.hpp"

namespace troupe {

/// LibTorch's operators, and on a device its kernels and the calls that launch them, recorded by Kineto from
/// construction to `collect`; for one thread and the threads of its backward.
///
/// Kineto is one per process: of simulated ranks the first has operators, the others none. Made and collected by
/// compute's thread.
class OperatorTrace {
 public:
  /// Keeps Kineto from reporting on standard error that there is no GPU. To be called before the program has a second
  /// thread, which may read the environment, and before anything else here.
  static void silence();
  /// To be called on the program's first thread before another one begins a trace: Kineto complains otherwise. The
  /// first call holds for the process: a Kineto that began without a device never sees one.
  static void initialise(bool on_device);
  /// Nothing if Kineto is in use.
  static std::unique_ptr<OperatorTrace> begin(bool on_device);
  ~OperatorTrace();
  OperatorTrace(const OperatorTrace&) = delete;
  OperatorTrace& operator=(const OperatorTrace&) = delete;
  /// Ends it: the records go to the recorder's tracks (add_activities).
  void collect(TraceRecorder& recorder);

 private:
  OperatorTrace() = default;
  bool open_ = false;
};

}  // namespace troupe
