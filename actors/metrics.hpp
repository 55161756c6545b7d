#pragma once
#include <caf/all.hpp>

#include <cstdint>
#include <fstream>
#include <functional>
#include <limits>
#include <string>

#include "actors/compute.hpp"

namespace troupe {

/// What happened over a few steps: sums while it is filled, means when it is read. Pure.
struct StepWindow {
  std::int64_t steps = 0, skipped = 0, first_step = 0;
  double loss_sum = 0, samples = 0, correct = 0;
  double step_ms = 0, exposed_ms = 0, reduce_ms = 0, data_ms = 0;  ///< sums over the steps
  double last_lr = 0, last_norm = 0, last_loss_scale = 1;
  std::int64_t buckets = 0, launched_before_end = 0;
  std::vector<Straggler> stragglers;  ///< at the last step

  void add(const StepReport& report, double data_wait_ms);
  /// Means over the samples of committed steps; not a number (null in JSON) where all steps were skipped.
  double loss() const { return samples > 0 ? loss_sum / samples : std::numeric_limits<double>::quiet_NaN(); }
  double accuracy() const { return samples > 0 ? correct / samples : std::numeric_limits<double>::quiet_NaN(); }
  double mean_step_ms() const { return steps > 0 ? step_ms / static_cast<double>(steps) : 0; }
  double steps_per_second() const { return step_ms > 0 ? 1000 * static_cast<double>(steps) / step_ms : 0; }
  double samples_per_second() const { return step_ms > 0 ? 1000 * samples / step_ms : 0; }
  double exposed_share() const { return step_ms > 0 ? exposed_ms / step_ms : 0; }
  double data_share() const { return step_ms > 0 ? data_ms / step_ms : 0; }
};

/// One line of metrics.jsonl and of the console.
struct MetricsReport {
  StepWindow window;
  std::int64_t epoch = 0, epochs = 0;
  std::int64_t step = 0;  ///< optimizer steps done in the run
  std::int64_t step_in_epoch = 0, steps_per_epoch = 0;
  std::int64_t total_steps = 0;
  bool log = true;                     ///< false: only the progress bar moves
  std::int64_t tokens_per_sample = 0;  ///< 0: the data has no tokens
};
struct ValidationReport {
  std::int64_t epoch = 0, step = 0;
  double loss = 0, accuracy = 0, samples = 0, seconds = 0;
  bool best = false;
};

/// Counters and log lines of rank 0: writes metrics.jsonl, hands each report to the console.
using MetricsActor =
    caf::typed_actor<caf::reacts_to<MetricsReport>, caf::reacts_to<ValidationReport>, caf::replies_to<caf::unit_t>::with<bool>>;

struct MetricsOptions {
  std::string path;  ///< of metrics.jsonl; empty: none
  std::function<void(const MetricsReport&)> on_report;
  std::function<void(const ValidationReport&)> on_validation;
};

struct MetricsState {
  MetricsActor::behavior_type make_behavior();
  MetricsActor::pointer self = nullptr;
  MetricsOptions options;
  std::ofstream file;
  static inline const char* name = "metrics";
};

MetricsActor::behavior_type metrics(MetricsActor::stateful_pointer<MetricsState> self, MetricsOptions options);

/// The JSON object of a line, keys as torchtitan names them where it has them.
std::string to_json(const MetricsReport& report);
std::string to_json(const ValidationReport& report);

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::MetricsReport)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::ValidationReport)
