#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "tensor_io/optimizer/optimizer.hpp"

namespace troupe {

/// Capability of a Strategy whose ranks hold parts of the state that are gone with a rank that dies: copies are taken
/// between steps, of which `rejoin`, and a newcomer's `attach`, make the whole again. Compute's thread.
class Snapshots {
 public:
  /// Collective, between steps. `note` comes back with the state.
  virtual void take_snapshot(Optimizer& optimizer, std::uint64_t generation, std::int64_t step,
                             const std::string& note) = 0;
  struct Restored {
    std::int64_t step = 0;  ///< the one that is run next
    std::string note;       ///< what take_snapshot was given
  };
  /// What rejoin or attach went back to; nothing the second time.
  virtual std::optional<Restored> take_restored() = 0;

 protected:
  ~Snapshots() = default;
};

}  // namespace troupe
