#pragma once
#include <span>
#include <string>

#include "actors/rank/rank_supervisor.hpp"

namespace troupe {

/// Writes each communicator's ledger, its last 4,096 collectives, as JSON lines: oldest first, one communicator after
/// the other. A collective under way is marked `"finished": false`. Returns the path, or nothing if the file could not
/// be written, since a dump must not add a failure.
std::string dump_ledgers(const std::string& path, int rank, std::span<const RegisterCommunicator> communicators);

}  // namespace troupe
