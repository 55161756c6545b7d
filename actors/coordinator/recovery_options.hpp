#pragma once
#include <chrono>

namespace troupe {

/// The answer to the loss of a rank.
struct RecoveryOptions {
  bool enabled = false;  ///< false: the job ends
  int min_ranks = 1;
  int min_start = 0;                             ///< ranks that the job may begin with; 0: all
  std::chrono::milliseconds last_call{120'000};  ///< for more ranks than min_start to join at the start
  int max_restarts = 3;                          ///< of one slot, within `restart_window`
  std::chrono::milliseconds restart_window{600'000};
  std::chrono::milliseconds replace_timeout{5'000};
  std::chrono::milliseconds link_hold_down{30'000};  ///< before a slot whose link has failed is started again
  std::chrono::milliseconds suspect_after{1'000};
  std::chrono::milliseconds fence_after{3'000};
  std::chrono::milliseconds hang_after{
      60'000};  ///< for a survivor to leave a step that was interrupted; it is killed then
  std::chrono::milliseconds park_after{60'000};    ///< without a quorum
  std::chrono::milliseconds leaver_saves{30'000};  ///< for one that has left to end its part of a save
};

}  // namespace troupe
