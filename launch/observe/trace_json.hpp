#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tensor_io/base/trace.hpp"

namespace troupe {

/// The source of a rank's events.
struct TraceSource {
  int rank = 0;
  std::string host;
  std::int64_t offset_ns = 0;  ///< from the rank's steady clock to rank 0's
};

/// The totals of a rank's trace.
struct TraceTotals {
  std::int64_t events = 0, dropped = 0;
  std::int64_t first_step = -1, last_step = -1;  ///< its whole steps, both of them included; -1: none
  std::int64_t collectives_ns = 0,
               hidden_ns = 0;  ///< in collectives beside compute, and of these while compute computed

  /// 1 if there were no collectives.
  double overlap() const noexcept {
    return collectives_ns > 0 ? static_cast<double>(hidden_ns) / static_cast<double>(collectives_ns) : 1;
  }
  void add(const TraceTotals& other);
};

struct TracePart {
  TraceTotals totals;
  std::string events;  ///< objects of Chrome's trace event format, a line each, with commas between them; times in us
                       ///< of rank 0's clock
};

/// One rank's events as a process of a Chrome trace. Each track is a thread; spans that do not nest get further threads
/// of that name, so that those of one thread always do. A message is an arrow, if both of its ends lie in a span, and
/// so are in the file.
///
/// A rank on the CPU has no kernels, and HolisticTraceAnalysis knows nothing else. So compute's work (forward,
/// backward, optimizer, without the waits within) is written once more as kernels of stream 0. The collectives of each
/// other track (the reducer's, FSDP's gathers) become kernels `ncclDevKernel_…` of a separate stream, each with the
/// launch that HTA needs. If a device recorded kernels, these are used instead, with a thread for each stream. Each has
/// an arrow from the call that launched it, and NCCL's also from the actor's collective that caused it. NCCL's kernels
/// are known by their names, as in HTA, and have the argument `communication`. Pure.
TracePart trace_part(const TraceRecorder::Recorded& recorded, const TraceSource& source);

using TraceInterval = std::pair<std::int64_t, std::int64_t>;
/// Sorted and disjoint.
std::vector<TraceInterval> merge_intervals(std::vector<TraceInterval> intervals);
/// Without those of `holes`; both from merge_intervals.
std::vector<TraceInterval> subtract_intervals(const std::vector<TraceInterval>& intervals,
                                              const std::vector<TraceInterval>& holes);
std::int64_t length_of(const std::vector<TraceInterval>& intervals);

}  // namespace troupe
