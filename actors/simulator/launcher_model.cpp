#include "actors/simulator/launcher_model.hpp"

#include <utility>

#include "actors/simulator/job.hpp"

namespace troupe::simulator {

using namespace std::chrono_literals;

namespace {

constexpr auto kRestartCoordinator = 300ms;  // until the launcher sees that it is gone

}  // namespace

void LauncherModel::begin_job() {
  journal_.clear();
  start_coordinator(0);
}

void LauncherModel::start_coordinator(int life) {
  auto& world = job_.world();
  auto* const process = coordinator_ = &world.start("coordinator", 0);
  state_ = nullptr;
  CoordinatorOptions options;
  options.job_id = job_.id();
  options.world_size = job_.options().ranks;
  options.recovery = job_.options().recovery;
  options.recovery.enabled = true;
  options.recovery.min_ranks = job_.options().min_ranks;
  if (job_.options().plan) options.plan = job_.options().plan;
  options.draw_incarnation = [this] { return job_.draw_incarnation(); };
  options.record = [this, process](const Membership& next) {
    if (process->alive) record(next);
  };
  options.log = [&world, process](const std::string& line) {
    if (process->alive) world.log("says: " + line);
  };
  options.life = process->life = life;
  options.without_journal = disk_full_;
  if (has_journal() && !disk_full_) options.resumed = journal_.back();
  actor_ = world.spawn(
      *process,
      [this, process, options](CoordinatorActor::stateful_pointer<CoordinatorState> self, NoArgument) {
        if (process == coordinator_) state_ = &self->state;
        return troupe::coordinator(self, options);
      },
      NoArgument{});
}

void LauncherModel::record(const Membership& next) {
  for (auto fault = at_journal_.begin(); fault != at_journal_.end(); ++fault) {
    if (fault->step != static_cast<std::int64_t>(next.generation)) continue;
    const bool written = fault->lasts.count() > 0 && !disk_full_;
    job_.world().log("fault: " + fault->to_string());
    at_journal_.erase(fault);
    if (written) {
      journal_.push_back(next);
      job_.history().journaled(next);
    }
    return kill_coordinator();
  }
  job_.history().journaled(next);
  if (disk_full_) throw Error(ErrorCode::io, "journal", "no space left on device");
  journal_.push_back(next);
}

void LauncherModel::kill_coordinator() {
  job_.note_fault();
  end_coordinator();
  job_.world().after(kRestartCoordinator, [this, dead = coordinator_] {
    if (!job_.done() && coordinator_ == dead) start_coordinator(dead->life + 1);
  });
}

void LauncherModel::end_coordinator() {
  state_ = nullptr;
  job_.world().kill(*coordinator_);
}

void LauncherModel::find_coordinator(Process& process, milliseconds patience, std::function<bool()> given_up,
                                     std::function<void(caf::strong_actor_ptr)> found) {
  if (!process.alive || given_up()) return;
  auto& world = job_.world();
  if (!process.frozen && coordinator_->alive && !coordinator_->frozen && state_ != nullptr) {
    if (auto* connection = world.connect(process, *coordinator_, "control"))
      return found(world.proxy(*connection, process, caf::actor_cast<caf::strong_actor_ptr>(actor_)));
  }
  if (patience <= 0ms) return found(nullptr);
  world.after(50ms, [this, &process, patience, given_up = std::move(given_up), found = std::move(found)]() mutable {
    find_coordinator(process, patience - 50ms, std::move(given_up), std::move(found));
  });
}

}  // namespace troupe::simulator
