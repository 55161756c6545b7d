#include "actors/compute/snapshot_schedule.hpp"

#include "actors/strategy/snapshots.hpp"
#include "tensor_io/files/bounded_json.hpp"

namespace troupe {

void SnapshotSchedule::take_if_due(Optimizer& optimizer, bool in_step) {
  const auto every = core_.options.training.snapshot_every;
  auto* snapshots = core_.capability<Snapshots>();
  if (every <= 0 || !core_.options.may_recover || snapshots == nullptr) return;
  const auto generation = core_.membership().generation;
  if (generation_ == generation && (in_step || core_.step() % every != 0)) return;
  const nlohmann::json note{{"loss_scale", core_.loss_scaler.scale()},
                            {"loss_scale_growth_tracker", core_.loss_scaler.growth_tracker()}};
  snapshots->take_snapshot(optimizer, generation, core_.step(), note.dump());
  generation_ = generation;
}

bool SnapshotSchedule::went_back() {
  auto* snapshots = core_.capability<Snapshots>();
  const auto restored = snapshots == nullptr ? std::nullopt : snapshots->take_restored();
  if (!restored) return false;
  read_bounded_json(restored->note, "the note of a snapshot", {}, [this](const nlohmann::json& note) {
    core_.loss_scaler.load(note.at("loss_scale").get<double>(),
                           note.at("loss_scale_growth_tracker").get<std::int64_t>());
  });
  core_.protocol.went_back(restored->step);
  return true;
}

}  // namespace troupe
