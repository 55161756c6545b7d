#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

/// Capability of a Strategy that adds figures to the run's records: how often its ranks have met, how old its gradients
/// are. Compute's thread.
class OwnFigures {
 public:
  using Figures = std::vector<std::pair<std::string, double>>;
  /// Names and values on this rank once `done` steps of the run are done. A rank that writes the run's records asks for
  /// them between two steps, for each record, and the record has them as metrics `strategy/NAME`. Names are such as
  /// Rank::log takes, each once. Empty: there is nothing to say now. No collective, and no wait for a device.
  virtual Figures own_figures(std::int64_t done) const = 0;

 protected:
  ~OwnFigures() = default;
};

}  // namespace troupe
