#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "actors/stragglers/straggler.hpp"

namespace troupe {

/// A number that training reports, by its names: torchtitan's if it has one, so that dashboards carry over, and the one
/// that Prometheus's grammar allows.
struct MetricName {
  const char* name;
  const char* prometheus;
  const char* help;
};

/// The one list of metrics (docs/reference/metrics.md is made from it).
std::span<const MetricName> metric_names() noexcept;
/// By its first name; nullptr: there is none.
const MetricName* find_metric(const std::string& name) noexcept;
/// The name as MLflow takes it: parentheses and percent signs are not allowed there.
std::string mlflow_name(const MetricName& metric);

/// The prefix of the names of held-out metrics.
inline constexpr const char* kValidationPrefix = "validation_metrics/";
/// The prefix of the names of a strategy's own figures.
inline constexpr const char* kStrategyPrefix = "strategy/";
/// Throws Error(usage) for a metric of the program that has the name of one of these.
void check_own_metric(const std::string& name);

/// A rank and its host.
struct RunMember {
  int rank = 0, slot = 0;
  std::string host;
  bool newcomer = false;  ///< got its state from the others
};

/// The record that all sinks write: one log interval, one validation, the start of a life of rank 0, an event, or the
/// end of the run.
struct MetricRecord {
  enum class Kind : std::uint8_t { start, train, validation, event, end };
  Kind kind = Kind::train;
  std::int64_t step = 0;        ///< optimizer steps done in the run
  std::int64_t steps_from = 0;  ///< ... and before the first step of the record
  std::int64_t epoch = 0;
  double wall_time = 0;  ///< seconds since 1970
  std::vector<std::pair<const MetricName*, double>> values;
  std::vector<std::pair<std::string, double>> own;  ///< metrics of the program itself (Rank::log), by name
  std::vector<Straggler> stragglers;
  bool best = false;

  // Of a train record.
  std::vector<SectionTimes> ranks;  ///< by rank: means of a step; empty: not known

  // Of a start, an event and an end.
  std::string event;  ///< membership, notice, skipped, warning, after_save, trace
  std::string text;   ///< the reason, the notice, the error; of an end: empty if the run did not end by an error
  std::uint64_t generation = 0;  ///< of the membership; 0: not known
  double stalled_ms = 0;         ///< of a membership: from its announcement until rank 0 could go on; 0: not known
  std::string cause;             ///< of a membership: why the one before ended; empty: not known
  std::vector<RunMember> members;
  int signal = 0;  ///< of an end: the signal that stopped the run; 0: none did

  /// Throws std::logic_error for a name that is not in the list.
  void add(const char* name, double value);
  /// NaN if the record has no such value.
  double value(const char* name) const noexcept;
};

/// One line of metrics.jsonl, without its end; a value that is no number is null.
std::string to_json(const MetricRecord& record);
/// The values of such a line; a line that is no record gives an empty list and step -1.
MetricRecord record_from_json(const std::string& line);

/// The records that a dead rank 0 leaves to its successor.
struct EarlierRecords {
  std::vector<MetricRecord>
      written;                     ///< the last ones in metrics.jsonl; sinks which have another way may have lost them
  std::vector<MetricRecord> lost;  ///< those that this rank knows and the file lacks
};
/// `known_lines`: of this rank; `tail`: the end of the file. Lines of it that a later start line voids do not count.
EarlierRecords earlier_records(const std::string& known_lines, const std::string& tail);

}  // namespace troupe
