#pragma once
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tensor_io/communicator/communicator_registry.hpp"

namespace troupe {

/// The claims of a back end, for the suite to check.
struct CommunicatorConformanceOptions {
  std::string name;  ///< of the back end: CommunicatorOptions::backend
  /// Makes a rank's communicator from options without NCCL, for the CPU; empty: make_communicator does, and the name is
  /// registered.
  CommunicatorFactory factory;
  std::vector<int> ranks;                     ///< group sizes; empty: those that each check has chosen
  std::string only;                           ///< one check (communicator_checks()); empty: all
  std::chrono::milliseconds timeout{20'000};  ///< CommunicatorOptions::timeout
  /// CommunicatorOptions::host by rank.
  std::function<std::string(int rank)> host = [](int) { return std::string("here"); };
  bool in_allocated_memory = false;  ///< reduced tensors come from allocate()
  bool sums_by_host = false;  ///< the ranks of one host add up first, and the sum is rounded to the tensor's type
  bool makes_updates = true;  ///< has all_reduce_update
  std::optional<bool> shares_memory;  ///< whether allocate_shared() has memory; empty: as it likes, on all ranks alike
  std::function<void(const std::string&)> log;  ///< gets a line for each group that is run; may be empty
};

/// The result of `communicator_conformance`.
struct CommunicatorConformanceReport {
  std::vector<std::string> failures;  ///< each with the check, the group's size, the rank and the finding
  int groups = 0;                     ///< that were run
  std::string name;                   ///< the back end's

  bool passed() const noexcept { return failures.empty(); }  ///< all held
  std::string to_string() const;                             ///< a line for each failure, or that it conforms
};

/// A check of the suite: its name, and its claim as description.
std::vector<RegisteredName> communicator_checks();

/// The suite that every communicator of ours passes, for a user's own. Each collective, in every type, operation and
/// some sizes, gives the values that the contract of `Communicator` promises, to the bit. Groups of split() work side
/// by side; memory from allocate() is as described; every wait ends by the deadline or by abort(). A broken
/// communicator gives the reason in each later call.
///
/// Ranks are threads of this process, in groups of up to 8, one group at a time; minutes for a slow back end. The call
/// ends only if the communicator keeps its deadlines. Throws Error(usage) for an unknown check.
CommunicatorConformanceReport communicator_conformance(const CommunicatorConformanceOptions& options);

}  // namespace troupe
