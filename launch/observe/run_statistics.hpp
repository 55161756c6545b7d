#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "actors/metrics/metric.hpp"

namespace troupe {

/// A run in numbers: means over its log intervals, each by its time. Shares are of a step, 0 to 1.
///
/// Left out are the first interval of each life of rank 0 and after each change of membership, if there are others:
/// they have warm-up and standstill. Intervals with another world size than the last one's are left out, too.
struct RunNumbers {
  int world_size = 0;          ///< at the end; 0: the records lack it
  std::int64_t intervals = 0;  ///< that the means are over; 0: there are none, and all else here is 0
  std::int64_t left_out = 0;
  std::int64_t steps = 0;  ///< at the end of the run
  double step_ms = 0, samples_per_second = 0, tokens_per_second = 0;
  double samples_error = 0;  ///< standard error of samples_per_second; 0: fewer than kParts intervals
  double data = 0, forward = 0, backward = 0, collectives = 0, exposed = 0, optimizer = 0, validation = 0,
         checkpoint = 0, rest = 0;
  double overlap = 1;                          ///< of the time in the reducer's collectives, at least
  double reduce_ms = 0;                        ///< a step's time in them
  double idle = 0;                             ///< as the metric
  double imbalance = 0;                        ///< of `ranks`: the slowest over the mean, less one
  double buckets = 0, bucket_mib = 0;          ///< a step's; a bucket's
  double loader_queue = 0, reducer_queue = 0;  ///< waiting batches, buckets; mean over time
  std::vector<SectionTimes> ranks;             ///< by rank, a step's
  std::vector<std::string> hosts;              ///< by rank, if the records have them
  std::int64_t slow_intervals = 0;             ///< of `intervals`, those with a slow rank
  double skipped = 0;                          ///< share of all steps of the run
  std::int64_t membership_changes = 0;         ///< after the first
  double stalled_s = 0;                        ///< by them; a lower bound if rank 0 was replaced
  double wall_s = 0;                           ///< from the first to the last record
  bool has_split = false;                      ///< the records have forward, backward and so on: older ones do not
  double communication() const noexcept { return exposed + collectives; }  ///< that is not hidden
};

/// The parts of a run from whose means `samples_error` comes: neighbouring intervals are alike, ten parts less.
inline constexpr std::size_t kParts = 10;

/// Whether both runs have the log intervals without which nothing is known of the noise in their speeds.
bool can_compare_speed(const RunNumbers& a, const RunNumbers& b) noexcept;
/// The words for two runs that have not.
inline constexpr const char* kTooFewIntervals = "there are too few log intervals to say how sure this is";

/// How the run ended, in a word, by its record of the end: `finished`, `stopped` by a signal, `failed`.
const char* end_word(const MetricRecord& end) noexcept;

/// Pure. Of records as read_run gives them.
RunNumbers numbers_of(const std::vector<MetricRecord>& records);

}  // namespace troupe
