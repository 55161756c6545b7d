#include "actors/rank/reducer.hpp"

#include <algorithm>

#include "tensor_io/base/steady_time.hpp"
#include "tensor_io/device/device_kernels.hpp"
#include "tensor_io/memory/failure_report.hpp"

namespace troupe {
ReducerActor::behavior_type reducer(ReducerActor::stateful_pointer<ReducerState> self, ReducerOptions options) {
  self->state.self = self;
  self->state.options = std::move(options);
  set_fault_watch(self->state.options.watch);
  return self->state.make_behavior();
}

ReducerActor::behavior_type ReducerState::make_behavior() {
  return {
      [this](const InstallPlan& message) { install(message); },
      [this](const InstallCommunicator& message) {
        options.communicator = message.communicator;
        failed = false;
        next = 0;
        plan = {};  // lets go of the old buckets' memory before there are new ones
        arrived.clear();
        return true;
      },
      [this](const BucketReady& bucket) { ready(bucket); },
  };
}

void ReducerState::install(const InstallPlan& message) {
  plan = message;
  arrived.assign(plan.buckets->size(), false);
  sent_ns.assign(arrived.size(), 0);
  next = 0;
}

void ReducerState::ready(const BucketReady& bucket) {
  if (failed || !plan.buckets) return;
  if (next == 0) {
    step = bucket.step;
    result = {};
    result.step = step;
    result.buckets = static_cast<std::int32_t>(arrived.size());
    options.communicator->ledger().set_step(step);
  }
  arrived[static_cast<std::size_t>(bucket.index)] = true;
  sent_ns[static_cast<std::size_t>(bucket.index)] = bucket.sent_ns;
  result.awaited_ns = std::max(bucket.sent_ns, free_since_ns);
  result.taken_ns = steady_now_ns();
  try {
    while (next < arrived.size() && arrived[next]) launch(next++);
  } catch (const std::exception& error) {  // of the communicator, or a hook of the user's
    return fail(failure_report(
        error, options.communicator->device(),
        {.code = ErrorCode::user, .operation = "communication hook on " + (*plan.buckets)[next - 1].label}));
  }
  if (next == arrived.size()) {
    arrived.assign(arrived.size(), false);
    next = 0;
    result.finished_ns = steady_now_ns();
    caf::anon_send(options.compute, result);
  }
}

void ReducerState::fail(ErrorReport report) {
  failed = true;
  if (plan.hook) plan.hook->give_up();
  if (report.rank < 0) report.rank = options.rank;
  if (report.actor.empty()) report.actor = "reducer";
  if (report.step < 0) report.step = step;
  if (may_be_recovered(report.code)) {  // compute knows what to do
    caf::anon_send(options.compute, CommunicatorFailed{report});
    return;
  }
  self->send(options.supervisor, RankFailed{report});
  caf::anon_send(options.compute, RankFailed{report});
}

const DeviceStream& ReducerState::stream() {
  const auto device = options.communicator->device();
  if (!own_stream || own_stream->device() != device) own_stream = DeviceStream::from_pool(device, false);
  return *own_stream;
}

void ReducerState::launch(std::size_t index) {
  auto& bucket = (*plan.buckets)[index];
  bucket.step = step;
  if (index == 1) fault_point("buckets", step);
  if (index + 1 == arrived.size()) fault_point("collective", step);
  const auto before = std::chrono::steady_clock::now();
  if (options.progress->backward_ended.load(std::memory_order_acquire) < step) ++result.launched_before_end;
  options.progress->launched.fetch_add(1, std::memory_order_release);
  result.queued_ms += 1e-6 * static_cast<double>(steady_now_ns() - sent_ns[index]);
  if (bucket.flat.defined()) result.bytes += static_cast<std::int64_t>(bucket.flat.nbytes());
  {
    const CurrentStream place(stream());
    if (bucket.ready) stream().wait(*bucket.ready);
    auto begin = timer.mark(stream());
    bucket.scale = 1;
    plan.hook->reduce(bucket, *options.communicator);
    if (bucket.checks.defined()) scale_and_check(bucket.flat, bucket.scale, bucket.checks);
    if (begin) result.on_device.push_back({std::move(begin), timer.mark(stream())});
    if (bucket.reduced) bucket.reduced->record(stream());
  }
  free_since_ns = steady_now_ns();
  result.busy_ms += milliseconds_since(before);
}

}  // namespace troupe
