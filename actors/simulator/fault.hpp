#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace troupe::simulator {

enum class FaultKind : std::uint8_t {
  kill_rank,         ///< at a time
  kill_rank_at,      ///< when it comes to `point` of `step`
  kill_agent,        ///< a host is lost with all that runs on it
  kill_coordinator,  ///< at a time
  kill_at_journal,   ///< the coordinator, when it writes generation `step`: before (lasts 0) or after it (1)
  stop_rank,         ///< SIGSTOP, and SIGCONT later
  stop_coordinator,
  stop_agent,
  part_hosts,     ///< hosts up to `target` can't reach the others
  cut_link,       ///< the rank's connection to the coordinator breaks
  break_data,     ///< the rank's data connections break
  slow_rank,      ///< computes ten times as long
  slow_network,   ///< every message takes 50 ms more
  full_disk,      ///< the rank's next part of a checkpoint can't be written
  replay,         ///< old messages arrive once more, up to 30 s late
  full_run_disk,  ///< from then on no membership can be recorded, and coordinators that take over know none
  break_data_at,  ///< the rank's data connections break within 20 ms after it comes to `point` of `step`
  leave           ///< the rank's host wants it gone: for good (lasts 0), or another starts in its place
};

/// One fault in a simulation.
struct Fault {
  FaultKind kind = FaultKind::kill_rank;
  std::chrono::milliseconds at{0};
  int target = 0;  ///< slot or host
  std::chrono::milliseconds lasts{0};
  std::string point;
  std::int64_t step = -1;

  std::string to_string() const;
};

/// The points at which a rank can be hurt: `forward`, `reduced`, `vote`, `voted`, `committed`, `heal`, `save`,
/// `written`, `publish`, `published`.
const std::vector<std::string>& fault_points();

/// The faults of a seed: one to eight, within the first five seconds, of all kinds.
std::vector<Fault> draw_faults(std::uint64_t seed, int ranks, int hosts, std::int64_t steps);

}  // namespace troupe::simulator
