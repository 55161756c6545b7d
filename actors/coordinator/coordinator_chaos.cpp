// Coordinator and --chaos: who is hurt when.
#include <algorithm>

#include "actors/coordinator/coordinator.hpp"

namespace troupe {

void CoordinatorState::hurt_ranks() {
  if (!chaos || phase == Phase::forming || phase == Phase::over) return;
  if (!first_step) first_step = now();
  const auto at = std::chrono::duration_cast<std::chrono::milliseconds>(now() - *first_step);
  for (const auto& event : chaos->due(at)) {
    const auto found = processes.find(event.slot);
    const bool there =
        found != processes.end() && found->second.member && !found->second.ended && !found->second.fenced;
    const auto lasts = event.lasts.count() > 0 ? ", " + std::to_string(event.lasts.count()) + " ms" : std::string();
    say("chaos: " + name_of(event.kind) + " rank " + std::to_string(rank_of(event.slot)) + lasts +
        (there ? "" : ": it is not there"));
    chaos->happened(event, there);
    if (!there) continue;
    if (event.kind == ChaosKind::kill || event.kind == ChaosKind::stop) found->second.hurt = true;
    self->send(found->second.supervisor, InjectFault{event.kind, event.lasts.count()});
  }
  std::int64_t steps = 0;
  for (const auto& [slot, process] : processes) steps = std::max(steps, process.steps_done);
  chaos->observe(at, steps, phase == Phase::training && current.world_size() == options.world_size);
}

void CoordinatorState::end_chaos() {
  if (chaos && first_step) say(chaos->summary());
  chaos.reset();
}

}  // namespace troupe
