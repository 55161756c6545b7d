#include "actors/compute/step_clock.hpp"

#include <algorithm>
#include <string>

#include "actors/strategy/peer_waits.hpp"
#include "tensor_io/base/steady_time.hpp"
#include "tensor_io/base/trace.hpp"

namespace troupe {
namespace {

// The name that HolisticTraceAnalysis knows steps by.
std::string step_name(std::int64_t step) { return "ProfilerStep#" + std::to_string(step); }

}  // namespace

void StepClock::reset() {
  section_range_.end();
  step_range_.end();
  own_ = {};
  inside_ms_ = shares_wait_ms_ = 0;
  device_times_.reset(core_.device());
  mark();
}

void StepClock::mark() {
  mark_ = std::chrono::steady_clock::now();
  waited_at_mark_ = std::chrono::nanoseconds(0);
  if (core_.services.program_communicator) waited_at_mark_ += core_.program_communicator().ledger().time_inside();
  if (const auto* waits = core_.capability<PeerWaits>()) waited_at_mark_ += waits->time_waited();
}

// Without what the compute thread waited for other ranks.
float StepClock::own_time_since_mark() {
  const auto before = mark_;
  const auto waited_before = waited_at_mark_;
  mark();
  const auto waited = std::max(std::chrono::nanoseconds(0), waited_at_mark_ - waited_before);
  inside_ms_ += std::chrono::duration<double, std::milli>(waited).count();
  return std::max(0.0f, std::chrono::duration<float, std::milli>(mark_ - before - waited).count());
}

std::vector<TimedInterval> StepClock::take_device_waits() {
  auto waits = core_.program_communicator().take_device_waits();
  if (auto* within = core_.capability<PeerWaits>()) {
    for (auto& wait : within->take_device_waits()) waits.push_back(std::move(wait));
  }
  return waits;
}

void StepClock::enter_step() {
  if (spans_are_ranges() && !step_range_.is_open()) step_range_.begin(step_name(core_.step()));
}

void StepClock::begin_section() {
  enter_step();
  section_range_.begin("forward");
  mark();
  if (core_.strategy) (void)take_device_waits();  // of a validation, or of a step that came to nothing
  device_times_.begin_section();
}

void StepClock::end_section(DeviceTimes::Part part, const char* name, const char* next) {
  trace_since(mark_.time_since_epoch().count(), name);
  section_range_.end();
  if (next != nullptr) section_range_.begin(next);
  const auto took = own_time_since_mark();
  (part == DeviceTimes::Part::forward ? own_.forward_ms : own_.backward_ms) += took;
  device_times_.end_section(part, take_device_waits());
}

void StepClock::report_reduction(StepReport& report, const BucketsReduced& reduced, double waited_ms) {
  device_times_.end_reduction(reduced.on_device, take_device_waits());
  waited_ms += std::exchange(shares_wait_ms_, 0);
  report.exposed_ms = core_.world_size() > 1 ? waited_ms : 0;  // a lone rank waits for its own reducer
  report.reduce_ms = reduced.busy_ms;
}

void StepClock::report_buckets(StepReport& report, const GradientSummary& summary) {
  report.buckets = summary.reduced.buckets;
  report.launched_before_end = summary.reduced.launched_before_end;
  report.message_us = summary.message_us;
  report.bucket_queue_ms = summary.reduced.queued_ms;
  report.bucket_bytes = summary.reduced.bytes;
}

// By the device's clock, and one share at a time: where the host does not wait for the device, a step's times come with
// a later one.
void StepClock::report_device(StepReport& report) {
  if (core_.device().is_cpu()) return;
  const auto times = device_times_.take();
  report.exposed_ms = times.exposed;
  report.reduce_ms = times.reduce;
  inside_ms_ = times.inside;
  own_.forward_ms = static_cast<float>(times.forward);
  own_.backward_ms = static_cast<float>(times.backward);
}

void StepClock::end_step(StepReport& report) {
  report.step_ms = milliseconds_since(step_started_);
  if (active_track() != nullptr)
    trace_since(step_started_.time_since_epoch().count(), step_name(report.step), TraceEvent::Kind::step);
  section_range_.end();
  step_range_.end();
  begin_step();
}

}  // namespace troupe
