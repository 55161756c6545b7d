#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tensor_io/base/error.hpp"
#include "tensor_io/communicator/communicator.hpp"

namespace troupe::conformance {

/// The exception of a rank's thread.
struct RankFailure {
  ErrorReport report;  ///< of an Error; code ok: of another exception
  std::string text;
  std::chrono::milliseconds after{0};  ///< since the rank's start
};

/// Makes the communicator of `rank`, on that rank's thread; collective.
using MakeRank = std::function<std::unique_ptr<Communicator>(int rank)>;

/// Runs `body` on a thread for each rank, each with its communicator of one group. Returns the failures, by rank, when
/// all have ended.
std::vector<std::optional<RankFailure>> run_rank_threads(int world_size, const MakeRank& make,
                                                         const std::function<void(Communicator&)>& body);

/// Throws std::runtime_error with the claim if it does not hold.
void require(bool condition, const std::string& claim);

}  // namespace troupe::conformance
