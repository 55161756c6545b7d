#pragma once
#include <string>
#include <utility>
#include <vector>

#include "tensor_io/communicator/communicator.hpp"

namespace troupe {

/// Two ranks that live do not reach each other.
class LinkFault final : public Error {
 public:
  LinkFault(ErrorReport report, std::vector<int> ranks) : Error(std::move(report)), ranks_(std::move(ranks)) {}
  const std::vector<int>& ranks() const noexcept {
    return ranks_;
  }  ///< unreachable from this one, by their names in errors

 private:
  std::vector<int> ranks_;
};

/// `rank 2`, `ranks 2, 3 and 5`, by their names in errors (CommunicatorOptions::members).
std::string name_ranks(const CommunicatorOptions& options, const std::vector<int>& ranks);

/// An Error(mismatch) whose cause groups the ranks by their actions. `records[i]` is the action of rank `ranks[i]`.
ErrorReport mismatch_report(const CommunicatorOptions& options, const std::vector<int>& ranks,
                            const std::vector<CollectiveRecord>& records);

}  // namespace troupe
