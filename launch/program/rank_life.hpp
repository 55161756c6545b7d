#pragma once
#include <functional>
#include <string>

#include "launch/config/config.hpp"
#include "launch/loop/rank.hpp"
#include "launch/loop/rank_system.hpp"
#include "launch/process/environment.hpp"

namespace troupe {

/// How a rank's life has ended, and the exit code that its process would have.
struct RankEnd {
  ErrorReport report;
  int code = 0;
};

/// One life of a rank on the calling thread: its actors, the program's body, and its end. Throws nothing.
RankEnd run_rank(caf::actor_system& system, const Config& config, const RankSystemOptions& options,
                 const std::function<void(Rank&)>& body);

/// The options of the rank at this place, from the config.
RankSystemOptions options_of(const Config& config, const RankEnvironment& place, at::Device device);

/// The file for a rank's last collectives after a hang; empty: the run has no folder.
std::string ledger_path(const Config& config, const RankEnvironment& place, int slot);

}  // namespace troupe
