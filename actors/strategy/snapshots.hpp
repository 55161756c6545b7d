#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "tensor_io/optimizer/optimizer.hpp"

namespace troupe {

/// Capability of a Strategy whose ranks hold parts of the state that die with them. Copies are taken between steps;
/// from them `rejoin`, and a newcomer's `attach`, restore the whole. Compute's thread.
class Snapshots {
 public:
  /// Collective, between steps. `note` comes back with the state.
  virtual void take_snapshot(Optimizer& optimizer, std::uint64_t generation, std::int64_t step,
                             const std::string& note) = 0;
  struct Restored {
    std::int64_t step = 0;  ///< the one that is run next
    std::string note;       ///< the note of take_snapshot
  };
  /// The snapshot that rejoin or attach went back to; empty the second time.
  virtual std::optional<Restored> take_restored() = 0;

 protected:
  ~Snapshots() = default;
};

}  // namespace troupe
