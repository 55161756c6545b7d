#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launch/loop/rank_system.hpp"
#include "launch/program/simulated_process.hpp"

namespace troupe {

struct SimulationOptions {
  int world_size = 2;
  int spares = 0;                                ///< that wait for a rank to be lost; with recovery only
  std::function<std::string(int slot)> host_of;  ///< empty: all are on `rank.host`
  RankSystemOptions rank;             ///< model of each rank's; its place, its coordinator and its faults are filled in
  RecoveryOptions recovery;           ///< enabled: a rank that is killed is replaced
  std::optional<ChaosOptions> chaos;  ///< with recovery only
  std::function<void(const std::string&)> log;  ///< the coordinator's lines; may be empty
  /// The faults of a slot in its first life (0), its second (1) and so on; with recovery only. May be empty.
  std::function<std::vector<PlacedFault>(int slot, int life)> faults;
  /// How much longer each step of a slot's rank takes; with recovery only. May be empty.
  std::function<std::chrono::microseconds(int slot)> slowed;
  /// The address by which a rank's process, or a host's agent (slot -1), knows the coordinator. Empty: its own.
  std::function<CoordinatorActor(const CoordinatorActor& coordinator, int slot, const std::string& host)> address_of;
  std::function<std::uint64_t()> draw_incarnation = random_incarnation;  ///< coordinator's thread; another each time
  /// Each membership that the coordinator decides on, on its thread. May be empty.
  std::function<void(const Membership&)> on_membership;
};

/// One life of a rank, on its own thread: makes its RankSystem, trains, and returns the exit status that its process
/// would have.
using RankLife = std::function<int(const RankSystemOptions&)>;

/// A simulated cluster: N ranks as threads of this process, each with its own actors and communicators, under one
/// coordinator; the numerics are those of N processes. With recovery, it does for these threads what an agent does for
/// processes: ranks can be killed (SimulatedProcess), and another thread replaces a dead one. Returns when all have
/// ended. With recovery it returns the coordinator's verdict, as an agent does, and `over` gets it. Without recovery it
/// returns the exit status of the rank that failed by itself, 0 if none did.
int simulate(caf::actor_system& system, const SimulationOptions& options, const RankLife& run_rank,
             std::optional<JobOver>* over = nullptr);

}  // namespace troupe
