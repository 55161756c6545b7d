#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "actors/metrics/metric.hpp"

namespace troupe {

/// Warnings of a run while it trains, by the numbers and in the words of `troupe report` (advise): communication, a
/// slow loader, unequal ranks. It also warns of metrics of the program that are not finite. Each cause once in a life
/// of rank 0, with its remedy.
///
/// It looks at log intervals, not at steps: the last `window` of them since the job began, or its membership changed.
/// The first of these is warm-up. Runs that are too short for meaningful numbers are not judged. Pure.
class RunWarnings {
 public:
  struct Options {
    std::size_t window = 10;   ///< intervals
    std::size_t at_least = 3;  ///< of them, after the warm-up, before any warning
    double seconds = 5;        ///< and their least duration
  };
  RunWarnings() = default;
  explicit RunWarnings(Options options) : options_(options) {}

  /// The next record that rank 0 writes, of any kind. Returns lines to show; mostly none.
  std::vector<std::string> add(const MetricRecord& record);

 private:
  bool may_judge() const;

  Options options_;
  std::vector<MetricRecord>
      since_;                   // the last start or change of membership, if it is known, and train records after it
  std::set<std::string> told_;  // subjects
};

}  // namespace troupe
