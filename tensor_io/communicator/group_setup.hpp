#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "tensor_io/communicator/communicator.hpp"

namespace troupe {

/// At least 1 ms.
std::chrono::milliseconds time_until(std::chrono::steady_clock::time_point deadline);

/// All-gather over the rendezvous, for the time before there is a communicator. Collective over `options`; `topic` is
/// used once per communicator name. Throws Error(timeout) that names the ranks that did not come before `deadline`.
std::vector<std::string> all_gather_at_rendezvous(const CommunicatorOptions& options, const std::string& topic,
                                                  const std::string& value,
                                                  std::chrono::steady_clock::time_point deadline);

/// Every rank gives its reason not to go on, or nothing. Returns all reasons on one line, the same on all ranks; empty
/// when all is well.
std::string agree(const CommunicatorOptions& options, const std::string& topic, const std::string& problem,
                  std::chrono::steady_clock::time_point deadline);

}  // namespace troupe
