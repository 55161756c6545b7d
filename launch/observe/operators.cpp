#include "launch/observe/operators.hpp"

#include <kineto/ActivityType.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <atomic>
#include <cstdlib>
#include <limits>
#include <optional>
#include <set>
#include <vector>

#include "launch/observe/kineto_activities.hpp"

namespace troupe {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

std::atomic<bool> kineto_taken{false};

std::int64_t system_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
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

// Nothing for what only says the same once more (a program's annotations as the device saw them) or is nobody's work
// (waits, overhead).
std::optional<KinetoActivity::Kind> kind_of(const profiler::KinetoEvent& event) {
  switch (static_cast<libkineto::ActivityType>(event.activityType())) {
    case libkineto::ActivityType::CPU_OP:
    case libkineto::ActivityType::USER_ANNOTATION: return KinetoActivity::Kind::operation;
    case libkineto::ActivityType::CUDA_RUNTIME:
    case libkineto::ActivityType::CUDA_DRIVER: return KinetoActivity::Kind::launch;
    case libkineto::ActivityType::CONCURRENT_KERNEL:
    case libkineto::ActivityType::GPU_MEMCPY:
    case libkineto::ActivityType::GPU_MEMSET: return KinetoActivity::Kind::device;
    default: return std::nullopt;
  }
}

}  // namespace

std::unique_ptr<OperatorTrace> OperatorTrace::begin(bool on_device) {
  if (kineto_taken.exchange(true)) return nullptr;
  std::set<ActivityType> activities{ActivityType::CPU};
  if (on_device) activities.insert(ActivityType::CUDA);
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO, false, false, false,
                                                     false, false);
  std::unique_ptr<OperatorTrace> trace(new OperatorTrace());
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities, {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION});
  trace->open_ = true;
  return trace;
}

void OperatorTrace::silence() { ::setenv("KINETO_LOG_LEVEL", "99", 0); }

void OperatorTrace::initialise(bool on_device) { begin(on_device).reset(); }

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
  std::vector<KinetoActivity> activities;
  for (const auto& found : result->events()) {
    const auto kind = kind_of(found);
    if (!kind || found.isHiddenEvent()) continue;
    auto& activity = activities.emplace_back();
    activity.kind = *kind;
    activity.name = found.name();
    activity.begin_ns = static_cast<std::int64_t>(found.startNs()) + offset;
    activity.end_ns = activity.begin_ns + static_cast<std::int64_t>(found.durationNs());
    // A call that no operator made is said to be of the thread that asks.
    const bool has_thread = *kind == KinetoActivity::Kind::operation || found.linkedCorrelationId() != 0;
    activity.thread = has_thread ? found.startThreadId() : 0;
    activity.resource = found.deviceResourceId();
    activity.correlation = static_cast<std::int64_t>(found.correlationId());
  }
  add_activities(activities, recorder);
}

}  // namespace troupe
