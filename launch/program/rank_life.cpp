#include "launch/program/rank_life.hpp"

#include <ATen/Parallel.h>

#include "launch/config/profile_setting.hpp"
#include "launch/process/build_id.hpp"
#include "launch/process/local_address.hpp"
#include "launch/process/rank_lines.hpp"
#include "launch/process/stop_signals.hpp"

namespace troupe {

std::string ledger_path(const Config& config, const RankEnvironment& place, int slot) {
  const auto& folder = place.coordinator_host.empty() || place.run.folder.empty() ? config.run_dir : place.run.folder;
  return folder.empty() ? std::string() : folder + "/ledger-rank" + std::to_string(slot) + ".jsonl";
}

RankSystemOptions options_of(const Config& config, const RankEnvironment& place, at::Device device) {
  RankSystemOptions options;
  options.device = device;
  options.process = {place.slot, place.incarnation};
  options.world_size = place.world_size;
  options.spare = place.spare;
  options.host = place.node;
  options.interface_address = place.interface_address.empty()
                                  ? local_address_towards(place.master_addr, place.master_port)
                                  : ipv4_address_of(place.interface_address);
  options.job_id = place.run.job_id;
  options.run_id = place.run.run_id;
  options.begins = !place.start_over && !place.restarted;
  options.build_id = program_build_id();
  options.config_hash = config_hash(config);
  options.training = static_cast<const TrainingOptions&>(config);
  options.strategy = static_cast<const StrategyOptions&>(config);
  options.communicator = static_cast<const CommunicatorSettings&>(config);
  options.ledger_path = ledger_path(config, place, place.slot);
  return options;
}

// One rank: its actors, the program's body, and how it ended.
RankEnd run_rank(caf::actor_system& system, const Config& config, const RankSystemOptions& options,
                 const std::function<void(Rank&)>& body) {
  try {
    at::init_num_threads();  // how many LibTorch takes is each thread's own, and MKL asks before LibTorch sets it
    Rank rank(system, config, options);
    try {
      rank.keep_records();
      body(rank);
      rank.end_trace();
      rank.end_loop({});
      if (profile_setting(config.profile).table && rank.is_main()) print_text(rank.profile().table());
    } catch (...) {
      const auto failure = system_of(rank).fail(std::current_exception());
      if (failure.code == ErrorCode::fenced || failure.code == ErrorCode::ok) {  // the job goes on
        rank.leave_loop();
      } else {
        rank.give_up_trace();
        rank.end_loop(failure.to_string());
      }
      return {failure, exit_code(failure.code)};
    }
    const int signal = rank.stop_signal();
    const ErrorReport ended{.code = signal == 0 ? ErrorCode::ok : ErrorCode::interrupted,
                            .rank = rank.rank(),
                            .cause = process_stop_signal == 0 ? "" : kAskedToStop};
    system_of(rank).finish(ended);
    return {ended, signal == 0 ? 0 : 128 + signal};
  } catch (...) {
    auto failure = report_of(std::current_exception());  // code ok: of a spare that was not needed
    if (failure.rank < 0) failure.rank = options.process.slot;
    return {failure, exit_code(failure.code)};
  }
}

}  // namespace troupe
