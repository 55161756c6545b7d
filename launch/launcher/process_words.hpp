#pragma once
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

#include "launch/launcher/coordinator_process.hpp"
#include "launch/launcher/rank_processes.hpp"
#include "tensor_io/base/error.hpp"

template <class Count, class Period>
struct nlohmann::adl_serializer<std::chrono::duration<Count, Period>> {
  static void to_json(json& count, const std::chrono::duration<Count, Period>& time) { count = time.count(); }
  static void from_json(const json& count, std::chrono::duration<Count, Period>& time) {
    time = std::chrono::duration<Count, Period>(count.get<Count>());
  }
};

namespace troupe {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RunOfJob, job_id, folder, run_id, checkpoint, outline)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RecoveryOptions, enabled, min_ranks, min_start, last_call, max_restarts,
                                   restart_window, replace_timeout, link_hold_down, suspect_after, fence_after,
                                   hang_after, park_after)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CoordinatorProcessOptions, run, world_size, recovery, chaos, life, address, port,
                                   journal, before, moved, keys_on_stdin, insecure)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankProcessOptions, run, host, coordinator_host, coordinator_port, master_addr,
                                   world_size, node_rank, nodes, slots, spares, recovery, starts_over, keys_on_stdin,
                                   bar_columns)

/// The options of `troupe coordinator` and `troupe node`, as one word of their command lines. Throws Error(usage) for a
/// text that JSON cannot hold.
template <class Options>
std::string word_of(const Options& options) {
  try {
    return nlohmann::json(options).dump();
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorCode::usage, "launch", "a path or a name is not UTF-8", "choose another --run-dir");
  }
}

/// And back. Throws Error(usage) for anything else.
template <class Options>
Options options_of(const std::string& word, const std::string& command) {
  try {
    return nlohmann::json::parse(word).get<Options>();
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorCode::usage, command, "only the launcher can start it", "use troupe launch");
  }
}

}  // namespace troupe
