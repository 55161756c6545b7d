#include "actors/simulator/checkpointer_model.hpp"

#include <algorithm>

#include "actors/simulator/job.hpp"

namespace troupe::simulator {

void CheckpointerModel::answer(const SaveEnded& ended) const {
  if (requester && ended.attempt == under_way) caf::anon_send(requester, SaveAnswered{ended.attempt, ended.report});
}

void CheckpointerModel::ended(const SaveEnded& ended) {
  const bool failed = ended.report.code != ErrorCode::ok;
  if (failed && publishes && ended.attempt == under_way && ended.attempt != publishing)
    job->checkpoints().give_up(ended.attempt);
  answer(ended);
}

void CheckpointerModel::written(const SavePart& save) {
  PartSaved saved{{}, save.generation, save.attempt, save.rank, save.ranks, false, {.code = ErrorCode::ok}};
  if (!job->checkpoints().write(save, rank->id.slot))
    saved.report = {ErrorCode::io,
                    save.rank,
                    "checkpointer",
                    save.attempt.step,
                    "saving a checkpoint",
                    "no space left on device",
                    {}};
  if (!job->comes_to(*rank, "written", save.attempt.step)) return;
  if (save.ranks > 1) return caf::anon_send(rank->supervisor, saved);
  auto ended = failed_save(save.attempt, saved.report);
  if (saved.report.code == ErrorCode::ok) ended.report = job->checkpoints().publish(save.attempt, 1, *rank->process);
  answer(ended);
}

void CheckpointerModel::publish(const PublishCheckpoint& order) {
  const auto ended = failed_save(order.attempt, job->checkpoints().publish(order.attempt, order.ranks, *rank->process));
  publishing = {};
  if (ended.report.code == ErrorCode::ok && !publishes) job->checkpoints().unlock();
  if (!job->comes_to(*rank, "published", order.attempt.step)) return;
  const bool temporary =
      ended.report.code == ErrorCode::io || (ended.report.code == ErrorCode::unavailable && !publishes);
  if (ended.report.code != ErrorCode::ok && !temporary) caf::anon_send(rank->supervisor, RankFailed{ended.report});
  caf::anon_send(rank->supervisor, CheckpointPublished{{}, ended});
}

caf::behavior checkpointer_model(caf::stateful_actor<CheckpointerModel>* self, Job* job, RankProcess* rank) {
  auto& state = self->state;
  state.job = job;
  state.rank = rank;
  state.draw = Draw(job->options().seed, rank->process->name + " disk");
  caf::anon_send(rank->supervisor, RegisterCheckpointer{caf::actor_cast<caf::actor>(self)});
  // One thing after the other, as the thread of Checkpointer does them.
  const auto disk_time = [&state] {
    const auto now = state.job->world().now();
    const std::chrono::microseconds takes(state.draw.in(500, state.draw.once_in(10) ? 400'000 : 20'000));
    state.disk_free = std::max(now, state.disk_free) + takes;
    return state.disk_free - now;
  };
  return {
      [self, disk_time](const SavePart& save) {
        auto& state = self->state;
        if (!std::exchange(state.saved_before, true) && save.rank == 0)
          state.publishes = state.job->checkpoints().lock(*state.rank->process);
        state.under_way = save.attempt;
        state.requester = caf::actor_cast<caf::actor>(self->current_sender());
        self->delayed_send(self, disk_time(), DiskWrote{save});
      },
      [self](const DiskWrote& wrote) { self->state.written(wrote.save); },
      [self, disk_time](const PublishCheckpoint& order) {
        self->state.publishing = order.attempt;
        if (self->state.job->comes_to(*self->state.rank, "publish", order.attempt.step))
          self->delayed_send(self, disk_time(), DiskPublishes{order});
      },
      [self](const DiskPublishes& message) { self->state.publish(message.order); },
      [self](const SaveEnded& ended) { self->state.ended(ended); },
      [self](const CheckpointFailed& failed) {
        const auto& state = self->state;
        if (failed.step == state.under_way.step) state.answer(failed_save(state.under_way, failed.report));
      },
      [](const InjectFault&) {},
  };
}

}  // namespace troupe::simulator
