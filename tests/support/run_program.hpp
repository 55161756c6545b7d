#pragma once
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "launch/loop/rank.hpp"
#include "launch/loop/rank_system.hpp"
#include "launch/network/actor_system.hpp"
#include "launch/program/simulate.hpp"
#include "strategies/shipped_strategies.hpp"

namespace troupe::testing {

/// A simulated cluster of `config.ranks` ranks, for run_simulation.
inline SimulationOptions simulation_of(const Config& config) {
  SimulationOptions simulation;
  simulation.world_size = static_cast<int>(config.ranks);
  simulation.rank.job_id = "test";
  simulation.rank.training = config;
  simulation.rank.strategy = config;
  simulation.rank.communicator = config;
  return simulation;
}

/// What troupe::main does for `--ranks N`, with a config made by hand: `body` on the thread of each rank's life.
/// `failed` is told how a life ended that was not killed, and not well (any thread, one at a time).
inline int run_simulation(const Config& config, const SimulationOptions& simulation,
                          const std::function<void(troupe::Rank&)>& body,
                          const std::function<void(int slot, const ErrorReport&)>& failed,
                          std::optional<JobOver>* over = nullptr) {
  register_shipped_strategies();
  ActorSystemConfig system_config(false);
  caf::actor_system system(system_config);
  std::mutex one_at_a_time;
  return simulate(
      system, simulation,
      [&](const RankSystemOptions& options) {
        ErrorReport ended{ErrorCode::ok, options.process.slot, {}, -1, {}, {}, {}};
        try {
          troupe::Rank rank(system, config, options);
          try {
            body(rank);
            system_of(rank).finish(ended);
          } catch (...) {
            ended = system_of(rank).fail(std::current_exception());
          }
        } catch (...) {
          ended = report_of(std::current_exception());
        }
        if (ended.code != ErrorCode::ok && ended.code != ErrorCode::fenced) {
          std::lock_guard lock(one_at_a_time);
          failed(options.process.slot, ended);
        }
        return exit_code(ended.code);
      },
      over);
}

/// The same with nothing but the ranks. The i-th string is what rank i ended with: empty, or the error's text.
inline std::vector<std::string> run_program(int world_size, const Config& config,
                                            const std::function<void(troupe::Rank&)>& body) {
  auto simulation = simulation_of(config);
  simulation.world_size = world_size;
  std::vector<std::string> errors(static_cast<std::size_t>(world_size));
  run_simulation(config, simulation, body, [&](int slot, const ErrorReport& report) {
    errors[static_cast<std::size_t>(slot)] = report.to_string();
  });
  return errors;
}

/// The batches of a step, for a rank's own loop.
class StepBatches {
 public:
  /// Takes one to backward. If the strategy orders the micro-batches, or `at_once`, it waits for the step's last one.
  /// Returns whether it was the last.
  bool take(troupe::Rank& rank, const std::shared_ptr<const Batch>& batch,
            const std::function<at::Tensor(const Batch&)>& loss_of, bool at_once = false) try {
    if (!rank.orders_micro_batches() && !at_once) {
      rank.backward(loss_of(*batch));
      return batch->last_of_step;
    }
    if (batch->micro_batch == 0) of_step_.clear();
    of_step_.push_back(batch);
    if (batch->last_of_step) rank.run_micro_batches(of_step_, [&](const Batch& of) { return Loss(loss_of(of)); });
    return batch->last_of_step;
  } catch (const Error& error) {  // a collective in forward or backward: the step's batches come again
    rank.recover(error);
    return false;
  }

 private:
  std::vector<std::shared_ptr<const Batch>> of_step_;
};

}  // namespace troupe::testing
