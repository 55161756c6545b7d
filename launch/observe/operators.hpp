#pragma once
#include <cstdint>
#include <memory>

#include "tensor_io/base/trace.hpp"

namespace troupe {

/// LibTorch's operators, and on a device its kernels and the calls that launch them, as Kineto records them, from
/// construction to `collect`; for one thread and what its backward runs on.
///
/// Kineto is one per process: of simulated ranks the first has operators, the others none. Made and collected by
/// compute's thread.
class OperatorTrace {
 public:
  /// Kineto is not to tell on standard error that there is no GPU. To be called before the program has a second thread,
  /// which may read the environment, and before anything else here.
  static void silence();
  /// To be called on the program's first thread before another one begins a trace: Kineto complains otherwise. What it
  /// is told first holds for the process: a Kineto that began without a device never sees one.
  static void initialise(bool on_device);
  /// Nothing where Kineto is in use.
  static std::unique_ptr<OperatorTrace> begin(bool on_device);
  ~OperatorTrace();
  OperatorTrace(const OperatorTrace&) = delete;
  OperatorTrace& operator=(const OperatorTrace&) = delete;
  /// Ends it: what there is goes to the recorder's tracks (add_activities).
  void collect(TraceRecorder& recorder);

 private:
  OperatorTrace() = default;
  bool open_ = false;
};

}  // namespace troupe
