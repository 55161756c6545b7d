#include "actors/simulator/checkpoint_directory.hpp"

#include "actors/simulator/checkpointer_model.hpp"

namespace troupe::simulator {

bool CheckpointDirectory::write(const SavePart& save, int slot) {
  if (full_disks_.erase(slot) > 0) return false;
  auto& checkpoint = saves_[save.attempt.id];
  checkpoint.step = save.attempt.step;
  checkpoint.ranks = save.ranks;
  checkpoint.parts[save.rank] = save.part;
  return true;
}

bool CheckpointDirectory::lock(const Process& process) {
  if (publisher_ != nullptr && publisher_ != &process && publisher_->alive) return false;
  publisher_ = &process;
  return true;
}

ErrorReport CheckpointDirectory::publish(const SaveAttempt& attempt, int ranks, const Process& process) {
  if (!lock(process))
    return {.code = ErrorCode::unavailable,
            .actor = "checkpointer",
            .step = attempt.step,
            .operation = "saving a checkpoint",
            .cause = "another process keeps writing there"};
  const auto found = saves_.find(attempt.id);
  if (found == saves_.end() || found->second.parts.size() != static_cast<std::size_t>(ranks))
    return {ErrorCode::bad_data, -1, "checkpointer", attempt.step, "saving a checkpoint", "a part is missing", {}};
  latest_ = found->second;
  latest_->ranks = ranks;
  history_.published(*latest_);
  world_.log("latest is step " + std::to_string(attempt.step));
  return {ErrorCode::ok, -1, {}, attempt.step, {}, {}, {}};
}

void CheckpointDirectory::give_up(const SaveAttempt& attempt) { saves_.erase(attempt.id); }

void CheckpointDirectory::save_alone(std::int64_t step, const ModelState& state, const Process& process) {
  if (!lock(process))
    return world_.log("step " + std::to_string(step) + " is not saved: another rank holds the directory");
  if (latest_ && latest_->step > step)
    return world_.log("step " + std::to_string(step) + " is not saved: the others have saved a later one");
  latest_ = SavedCheckpoint{step, 1, {{0, {step, state}}}};
  history_.published(*latest_, true);
  world_.log("latest is step " + std::to_string(step) + ", saved by a rank alone");
}

}  // namespace troupe::simulator
