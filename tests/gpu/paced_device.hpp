#pragma once
#include <cstddef>
#include <memory>

#include "tests/gpu/paced_nccl.hpp"

namespace troupe::test {

/// PacedCopy on the current CUDA device: a copy, and then kernels of a few thread blocks that sleep until the time is
/// over.
class PacedDevice : public PacedCopy {
 public:
  struct Pace {
    double bytes_per_s =
        0;  ///< 0: nothing is copied and nothing waits, the free run beside which the paced one is measured
    double latency_s = 10e-6;
    int blocks = 4;  ///< that sleep: multiprocessors which the model lacks meanwhile
  };
  /// Of the collectives since `begin`.
  struct Spans {
    double all_ms = 0;                  ///< from each one's start in its stream to its end: the sum
    double last_all_reduce_ms = 0;      ///< of the one that began last
    double all_reduces_after_mark = 0;  ///< ms from `mark` to the end of the all-reduces; 0 where they were over
    std::size_t wire_bytes = 0;
    std::size_t count = 0;
  };

  static std::shared_ptr<PacedDevice> create();
  /// For the collectives to come. Nothing may be under way.
  virtual void set_pace(const Pace& pace) = 0;
  /// Forgets the spans. Nothing may be under way.
  virtual void begin() = 0;
  /// What `stream` holds now comes before the mark, a backward's kernels for example.
  virtual void mark(NcclStream stream) = 0;
  /// Waits for the device. Throws std::runtime_error where CUDA has failed.
  virtual Spans spans() = 0;
};

}  // namespace troupe::test
