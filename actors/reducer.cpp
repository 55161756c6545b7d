#include "actors/reducer.hpp"

namespace troupe {

ReducerActor::behavior_type reducer(ReducerActor::stateful_pointer<ReducerState> self, ReducerOptions options) {
  self->state.self = self;
  self->state.options = std::move(options);
  return self->state.make_behavior();
}

ReducerActor::behavior_type ReducerState::make_behavior() {
  return {
      [this](const InstallPlan& message) { install(message); },
      [this](const BucketReady& bucket) { ready(bucket); },
  };
}

void ReducerState::install(const InstallPlan& message) {
  plan = message;
  arrived.assign(plan.buckets->size(), false);
  next = 0;
}

void ReducerState::ready(const BucketReady& bucket) {
  if (failed) return;
  if (next == 0) {
    step = bucket.step;
    result = BucketsReduced{step, static_cast<std::int32_t>(arrived.size()), 0, 0};
    options.communicator->ledger().set_step(step);
  }
  arrived[static_cast<std::size_t>(bucket.index)] = true;
  try {
    while (next < arrived.size() && arrived[next]) launch(next++);
  } catch (const Error& error) {
    failed = true;
    auto report = error.report();
    if (report.rank < 0) report.rank = options.rank;
    if (report.actor.empty()) report.actor = "reducer";
    if (report.step < 0) report.step = step;
    self->send(options.supervisor, RankFailed{report});
    caf::anon_send(options.compute, RankFailed{report});
    return;
  } catch (const std::exception& error) {  // a hook of the user's
    failed = true;
    const ErrorReport report{
        ErrorCode::user, options.rank, "reducer", step, "communication hook on " + (*plan.buckets)[next - 1].label, error.what(), {}};
    self->send(options.supervisor, RankFailed{report});
    caf::anon_send(options.compute, RankFailed{report});
    return;
  }
  if (next == arrived.size()) {
    arrived.assign(arrived.size(), false);
    next = 0;
    caf::anon_send(options.compute, result);
  }
}

void ReducerState::launch(std::size_t index) {
  auto& bucket = (*plan.buckets)[index];
  bucket.step = step;
  const auto before = std::chrono::steady_clock::now();
  if (options.progress->backward_ended.load(std::memory_order_acquire) < step) ++result.launched_before_end;
  options.progress->launched.fetch_add(1, std::memory_order_release);
  plan.hook->reduce(bucket, *options.communicator);
  result.busy_ms += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - before).count();
}

}  // namespace troupe
