#pragma once
#include <string>
#include <vector>

#include "tensor_io/communicator.hpp"

namespace troupe {

/// `rank 2`, `ranks 2, 3 and 5`, by the names that errors use (CommunicatorOptions::members).
std::string name_ranks(const CommunicatorOptions& options, const std::vector<int>& ranks);

/// An Error(mismatch) whose cause groups the ranks by what they do. `records[i]` is what rank `ranks[i]` does.
ErrorReport mismatch_report(const CommunicatorOptions& options, const std::vector<int>& ranks,
                            const std::vector<CollectiveRecord>& records);

}  // namespace troupe
