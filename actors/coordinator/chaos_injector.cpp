#include "actors/coordinator/chaos_injector.hpp"

#include <algorithm>

namespace troupe {

std::vector<ChaosInjector::Injection> ChaosInjector::due(ProcessTable& processes, bool whole, Time now) {
  std::vector<Injection> injections;
  if (!run_) return injections;
  if (!first_step_) first_step_ = now;
  const auto at = std::chrono::duration_cast<std::chrono::milliseconds>(now - *first_step_);
  for (const auto& event : run_->due(at)) {
    auto* process = processes.in_slot(event.slot);
    const bool there = process != nullptr && process->member && process->is_active();
    const auto lasts = event.lasts.count() > 0 ? ", " + std::to_string(event.lasts.count()) + " ms" : std::string();
    auto& injection = injections.emplace_back();
    injection.line = "chaos: " + name_of(event.kind) + " rank " + std::to_string(processes.rank_of(event.slot)) +
                     lasts + (there ? "" : ": it is not running");
    run_->happened(event, there);
    if (!there) continue;
    if (event.kind == ChaosKind::kill || event.kind == ChaosKind::stop) process->hurt = true;
    if (event.kind == ChaosKind::leave) injection.leaves = {process->joined.process, "--chaos"};
    injection.target = process->supervisor;
    injection.fault = {event.kind, event.lasts.count()};
  }
  std::int64_t steps = 0;
  for (const auto& [slot, process] : processes.all()) steps = std::max(steps, process.steps_done);
  run_->observe(at, steps, whole);
  return injections;
}

std::string ChaosInjector::end() {
  auto line = run_ && first_step_ ? run_->summary() : std::string();
  run_.reset();
  return line;
}

}  // namespace troupe
