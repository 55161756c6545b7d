#include "launch/observe/operators.hpp"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <atomic>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>
#include <string>

namespace troupe {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

std::atomic<bool> kineto_taken{false};

std::int64_t system_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Kineto's times are of the system's clock, ours of the steady one.
std::int64_t steady_minus_system_ns() {
  std::int64_t offset = 0, shortest = std::numeric_limits<std::int64_t>::max();
  for (int i = 0; i < 8; ++i) {
    const auto before = steady_now_ns(), system = system_now_ns(), after = steady_now_ns();
    if (after - before >= shortest) continue;
    shortest = after - before;
    offset = before + shortest / 2 - system;
  }
  return offset;
}

}  // namespace

std::unique_ptr<OperatorTrace> OperatorTrace::begin(bool on_device) {
  if (kineto_taken.exchange(true)) return nullptr;
  std::set<ActivityType> activities{ActivityType::CPU};
  if (on_device) activities.insert(ActivityType::CUDA);
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO, false, false, false, false, false);
  std::unique_ptr<OperatorTrace> trace(new OperatorTrace());
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities, {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION});
  trace->open_ = true;
  return trace;
}

void OperatorTrace::silence() { ::setenv("KINETO_LOG_LEVEL", "99", 0); }

void OperatorTrace::initialise() { begin(false).reset(); }

OperatorTrace::~OperatorTrace() {
  if (open_) {
    try {
      profiler::disableProfiler();
    } catch (const std::exception&) {  // what it would have said goes nowhere
    }
  }
  kineto_taken = false;
}

void OperatorTrace::collect(TraceRecorder& recorder) {
  open_ = false;
  const auto result = profiler::disableProfiler();
  const auto offset = steady_minus_system_ns();
  std::map<std::uint64_t, TraceTrack*> threads;
  TraceTrack* device = nullptr;
  for (const auto& found : result->events()) {
    if (found.isHiddenEvent()) continue;
    TraceEvent event;
    event.set_name(found.name());
    event.begin_ns = static_cast<std::int64_t>(found.startNs()) + offset;
    event.end_ns = event.begin_ns + static_cast<std::int64_t>(found.durationNs());
    if (event.begin_ns < recorder.began_ns()) continue;
    if (found.deviceType() != at::kCPU) {
      event.kind = TraceEvent::Kind::kernel;
      event.stream = static_cast<std::int32_t>(found.deviceResourceId());
      event.correlation = static_cast<std::int64_t>(found.correlationId());
      if (device == nullptr) device = &recorder.track("device");
      device->add(event);
      continue;
    }
    const std::string_view name = event.name.data();
    const bool launches = name.starts_with("cuda") || name.starts_with("cuLaunch");
    event.kind = launches ? TraceEvent::Kind::launch : TraceEvent::Kind::operation;
    if (launches) event.correlation = static_cast<std::int64_t>(found.correlationId());
    auto& track = threads[found.startThreadId()];
    if (track == nullptr)
      track = &recorder.track(threads.size() == 1 ? "operators" : "operators, thread " + std::to_string(threads.size()));
    track->add(event);
  }
}

}  // namespace troupe
