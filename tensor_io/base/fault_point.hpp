#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

/// A place where a test may hurt this process. TROUPE_FAULT=`slot=1,step=5,at=vote,signal=9` sends the signal to the
/// process when slot 1 comes to `vote` in step 5, in the slot's first life (`life=1`: in its second). Semicolons
/// separate several. If ranks share a process, it calls the thread's FaultWatch, whose exceptions pass through. Without
/// either it costs two loads and branches. Any thread.
///
/// Places: allocate (in step -1), connect (to the other ranks of a Gloo communicator; in step 0), distribute, data,
/// forward, backward, buckets, collective, reduced, vote, voted, committed, optimizer, stage, switch, switched,
/// validate, validated (it has the result, and on_validation comes next), save, end (of the loop: the rank has nothing
/// left to do), snapshot (with the copy in its place), heal, trace (gathering it; step: the window's LAST); of
/// `slot=coordinator`, with the generation as step (0: its own start): journal, journalled.
void fault_point(const char* place, std::int64_t step);

/// All of them.
const std::vector<std::string>& fault_places();
/// Throws Error(usage), which names `source`, for a place that is not one of them.
void check_fault_place(const std::string& source, const std::string& place);

/// A fault of TROUPE_FAULT.
struct PlannedFault {
  std::string slot;  ///< a number, or `coordinator`
  int life = 0;
  std::string place;
  std::int64_t step = 0;
  int signal = 9;
};
/// The faults of TROUPE_FAULT, of all slots. Throws Error(usage) with the first word without a meaning.
std::vector<PlannedFault> planned_faults();

/// Replaces the process if several ranks share one: a fault of a rank hits its threads.
class FaultWatch {
 public:
  virtual ~FaultWatch() = default;
  /// One of the rank's threads has come to a place. May delay it, or end it by an exception.
  virtual void at(const char* place, std::int64_t step) = 0;
};

/// The calling thread's; empty if its rank is a whole process.
const std::shared_ptr<FaultWatch>& fault_watch() noexcept;
void set_fault_watch(std::shared_ptr<FaultWatch> watch) noexcept;

}  // namespace troupe
