#include "actors/compute/snapshot_schedule.hpp"

#include "actors/strategy/handover.hpp"
#include "actors/strategy/snapshots.hpp"
#include "tensor_io/device/device_stream.hpp"
#include "tensor_io/files/bounded_json.hpp"

namespace troupe {

void SnapshotSchedule::take_if_due(Optimizer& optimizer, bool in_step) {
  const auto every = core_.options.training.snapshot_every;
  auto* snapshots = core_.capability<Snapshots>();
  if (every <= 0 || !core_.options.may_recover || snapshots == nullptr) return;
  const auto generation = core_.membership().generation;
  if (generation_ == generation && (in_step || core_.step() % every != 0)) return;
  snapshots->take_snapshot(optimizer, generation, core_.step(), note());
  generation_ = generation;
}

bool SnapshotSchedule::hand_over(Optimizer& optimizer, const std::vector<int>& leaving) {
  auto* handover = core_.capability<Handover>();
  if (handover == nullptr ||
      !handover->hand_over(optimizer, {leaving, core_.membership().generation, core_.step(), note()}))
    return false;
  // On a device it has only been launched.
  if (const auto device = core_.device(); !device.is_cpu()) {
    DeviceEvent over(device);
    over.record(DeviceStream::current(device));
    core_.program_communicator().wait_on_host(over, "the state of leaving ranks");
  }
  core_.strategy->set_rollback_point();
  core_.protocol.part(leaving);
  return true;
}

// What of the step goes back with a snapshot.
std::string SnapshotSchedule::note() const {
  return nlohmann::json{{"loss_scale", core_.loss_scaler.scale()},
                        {"loss_scale_growth_tracker", core_.loss_scaler.growth_tracker()}}
      .dump();
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
