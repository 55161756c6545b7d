#pragma once
#include <string>
#include <utility>
#include <vector>

namespace troupe {

/// Capability of a Strategy that has figures of its own for the run's records: how often its ranks have met, how old
/// its gradients are. Compute's thread.
class OwnFigures {
 public:
  using Figures = std::vector<std::pair<std::string, double>>;
  /// Names and values on this rank, now. It is asked on rank 0, once for each record, and the records have a value NAME
  /// as the metric `strategy/NAME`. A name has the characters that Rank::log allows. No collective, and no wait for a
  /// device.
  virtual Figures own_figures() const = 0;

 protected:
  ~OwnFigures() = default;
};

}  // namespace troupe
