#pragma once
#include "actors/coordinator/process_table.hpp"
#include "actors/messages/chaos.hpp"

namespace troupe {

/// --chaos: decides which ranks are hurt when. Sends nothing; the time is given, and chaos begins with the first call.
class ChaosInjector {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Injection {
    std::string line;                   ///< for the user
    std::optional<LeaveNotice> leaves;  ///< it is to leave instead
    RankSupervisorActor target;         ///< gets `fault`; null: it is not there
    InjectFault fault;
  };

  /// Hurts no rank.
  ChaosInjector() = default;
  ChaosInjector(const ChaosOptions& options, int slots) : run_(std::in_place, options, slots) {}

  /// The faults since the last call. Marks the processes that they end or stop as hurt. `whole`: all ranks train.
  std::vector<Injection> due(ProcessTable& processes, bool whole, Time now);
  /// Ends chaos. Returns a line that sums it up; empty: there was none.
  std::string end();

 private:
  std::optional<ChaosRun> run_;
  std::optional<Time> first_step_;
};

}  // namespace troupe
