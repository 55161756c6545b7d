#pragma once
#include "tensor_io/base/span_ranges.hpp"

namespace troupe {

/// Ranges of NVTX, in a domain of their own: what the program itself pushes there is not mixed with them. A call costs
/// a few nanoseconds if no profiler has injected itself. They live as long as the process.
SpanRanges& nvtx_ranges() noexcept;

}  // namespace troupe
