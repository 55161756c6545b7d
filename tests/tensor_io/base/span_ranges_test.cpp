#include <stdexcept>

#include "tensor_io/base/trace.hpp"
#include "tests/catch.hpp"
#include "tests/support/noted_ranges.hpp"

using namespace troupe;
using troupe::testing::NotedRanges;

namespace {

using Paths = std::vector<std::string>;

}  // namespace

TEST_CASE(
    "[T08] spans are ranges of their thread, with or without a trace, and of no thread unless that is asked for") {
  NotedRanges ranges;
  { const TraceSpan span("before"); }
  CHECK_FALSE(spans_are_ranges());
  CHECK(ranges.calls() == 0);
  set_span_ranges(&ranges);
  join_trace(nullptr, "compute");
  {
    const TraceSpan outer("outer");
    TracePhase phase("phase");
    const TraceSpan inner("inner");
    std::thread([] { const TraceSpan span("elsewhere"); }).join();
    phase.end();
  }
  set_span_ranges(nullptr);
  { const TraceSpan span("after"); }
  join_trace(nullptr, {});
  // A phase that ends before its inner span cuts that in two.
  CHECK((ranges.paths() == Paths{"compute: / outer", "compute: / outer / phase", "compute: / outer / phase / inner",
                                 ": / elsewhere", "compute: / outer / inner"}));
  CHECK(ranges.balanced());
}

TEST_CASE("[T08] ranges are balanced if a span ends by an exception, never, or on another thread") {
  NotedRanges ranges;
  set_span_ranges(&ranges);
  try {
    const TraceSpan outer("outer");
    TracePhase phase("phase");
    throw std::runtime_error("no");
  } catch (const std::runtime_error&) {
    CHECK(ranges.balanced());
  }
  OpenRange again("first");
  again.begin("second");
  CHECK_FALSE(ranges.balanced());
  again.end();
  again.end();
  CHECK(ranges.balanced());
  auto moved = std::make_unique<OpenRange>();
  std::thread([&] { moved->begin("of a thread that ends"); }).join();
  CHECK(ranges.balanced());
  const TraceSpan here("here");
  moved.reset();  // pops nothing of this thread
  CHECK_FALSE(ranges.balanced());
  CHECK((ranges.paths() ==
         Paths{": / outer", ": / outer / phase", ": / first", ": / second", ": / of a thread that ends", ": / here"}));
}

TEST_CASE("[T08] a range's name is cut at 63 bytes") {
  NotedRanges ranges;
  set_span_ranges(&ranges);
  { const OpenRange range(std::string(100, 'x')); }
  CHECK(ranges.paths().front() == ": / " + std::string(63, 'x'));
}

TEST_CASE("[T08] a phase is in the trace from its start, also if recording began within it, and only if it ends") {
  const auto recorder = std::make_shared<TraceRecorder>();
  join_trace(recorder, "compute");
  TracePhase early("early"), broken("broken");
  recorder->start();
  early.end();
  join_trace(nullptr, {});
  const auto events = recorder->take().tracks[0].second;
  REQUIRE(events.size() == 1);
  CHECK(events[0].name.data() == std::string("early"));
  CHECK(events[0].begin_ns == recorder->began_ns());
}
