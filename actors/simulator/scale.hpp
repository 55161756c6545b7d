#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <string>

namespace troupe::simulator {

/// The cost of one change of membership at a number of ranks.
struct ScaleResult {
  struct Change {
    std::map<std::string, std::size_t> messages;    ///< between processes, by type; without periodic ones
    std::size_t count = 0;                          ///< of them
    std::chrono::duration<double> spent{0};         ///< of this machine's time, for all ranks and their network
    std::chrono::duration<double> coordinating{0};  ///< ... of which the coordinator's: one thread's, in a job too
    std::chrono::milliseconds simulated{0};
  };
  Change forming, replacing, shrinking, taking_over;
};

/// The real coordinator and a real supervisor for each of `ranks` ranks, with nothing below them that trains. They
/// join, one dies and is replaced, one dies and is not, and the coordinator dies and the next one takes over.
ScaleResult measure_scale(int ranks);

}  // namespace troupe::simulator
