#pragma once
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "launch/actor_system.hpp"
#include "launch/rank.hpp"
#include "strategies/comm_hooks.hpp"
#include "strategies/ddp.hpp"

namespace troupe::testing {

/// What troupe::main does for `--ranks N`, with a config made by hand: `body` on each rank's thread. The i-th string is what rank i ended
/// with: empty, or the error's text.
inline std::vector<std::string> run_program(int world_size, const Config& config, const std::function<void(Rank&)>& body) {
  register_ddp();
  register_comm_hooks();
  ActorSystemConfig system_config(false);
  caf::actor_system system(system_config);
  CoordinatorOptions coordinator_options;
  coordinator_options.job_id = "test";
  coordinator_options.world_size = world_size;
  auto coordinator_actor = system.spawn(coordinator, coordinator_options);
  std::vector<std::string> errors(static_cast<std::size_t>(world_size));
  std::vector<std::thread> threads;
  for (int r = 0; r < world_size; ++r) {
    threads.emplace_back([&, r] {
      RankSystemOptions options;
      options.process = {r, 0};
      options.world_size = world_size;
      options.job_id = "test";
      options.training = config;
      options.strategy = config;
      options.communicator = config;
      options.coordinator = coordinator_actor;
      try {
        Rank rank(system, config, options);
        try {
          body(rank);
          rank.system().finish({ErrorCode::ok, r, {}, -1, {}, {}, {}});
        } catch (...) {
          errors[static_cast<std::size_t>(r)] = rank.system().fail(std::current_exception()).to_string();
        }
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(r)] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  caf::anon_send_exit(coordinator_actor, caf::exit_reason::user_shutdown);
  return errors;
}

}  // namespace troupe::testing
