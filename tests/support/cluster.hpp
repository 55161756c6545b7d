#pragma once
#include <caf/all.hpp>

#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "launch/loop/rank_system.hpp"
#include "launch/program/simulate.hpp"
#include "strategies/hooks/comm_hooks.hpp"
#include "strategies/replicated/ddp.hpp"
#include "tensor_io/base/random_seed.hpp"
#include "tests/catch.hpp"

namespace troupe::testing {

/// N ranks as threads of this process with their true actors, communicators and numerics: what `--ranks N` runs,
/// without a config.
struct Cluster {
  int world_size = 2;
  RankSystemOptions options;

  /// Calls `body` on each rank's thread. The i-th string is what rank i ended with: empty, or the error's text.
  std::vector<std::string> run(const std::function<void(RankSystem&)>& body) {
    std::vector<std::string> errors(static_cast<std::size_t>(world_size));
    caf::actor_system_config config;
    config.set("scheduler.policy", caf::atom("sharing"));
    config.set("scheduler.max-threads", 1);
    caf::actor_system system(config);
    options.communicator.collective_timeout = 20;
    SimulationOptions simulation;
    simulation.world_size = world_size;
    simulation.rank = options;
    simulate(system, simulation, [&](const RankSystemOptions& mine) {
      ErrorReport report{.code = ErrorCode::ok, .rank = mine.process.slot};
      try {
        RankSystem rank(system, mine);
        try {
          body(rank);
          rank.finish(report);
        } catch (...) {
          report = rank.fail(std::current_exception());
        }
      } catch (...) {
        report = report_of(std::current_exception());
        if (report.rank < 0) report.rank = mine.process.slot;
      }
      if (report.code != ErrorCode::ok) errors[static_cast<std::size_t>(mine.process.slot)] = report.to_string();
      return exit_code(report.code);
    });
    return errors;
  }
};

/// One whose ranks know ddp and its hooks.
inline Cluster ddp_cluster(int world_size) {
  static const bool registered = [] {
    register_ddp();
    register_comm_hooks();
    return true;
  }();
  (void)registered;
  Cluster cluster;
  cluster.world_size = world_size;
  return cluster;
}

inline void check_no_errors(const std::vector<std::string>& errors) {
  for (const auto& error : errors) CHECK(error == "");
}

}  // namespace troupe::testing
