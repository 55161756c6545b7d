#pragma once
#include <caf/all.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/metrics/metric_sink.hpp"
#include "actors/metrics/step_window.hpp"
#include "actors/metrics/validation_report.hpp"
#include "tensor_io/base/trace.hpp"

namespace troupe {

/// A loop's report after an interval of steps.
struct MetricsReport {
  StepWindow window;
  std::int64_t epoch = 0, epochs = 0;
  std::int64_t step = 0;  ///< optimizer steps done in the run
  std::int64_t step_in_epoch = 0, steps_per_epoch = 0;
  std::int64_t total_steps = 0;
  bool log = true;                                      ///< false: only the progress bar moves
  std::int64_t tokens_per_sample = 0;                   ///< 0: the data has no tokens
  double seconds_left = -1;                             ///< of the run, at its pace so far; below 0: not known
  std::vector<std::pair<std::string, double>> figures;  ///< the strategy's own (OwnFigures)
  double max_resident_gib = 0;                          ///< of this process; 0: not known
  double max_active_gib = 0;                            ///< of its device: in tensors, at most so far; 0 on the CPU
  double max_reserved_gib = 0;                          ///< ... and kept by LibTorch's allocator
  double wall_time = 0;                                 ///< seconds since 1970
  int world_size = 1;
  std::int64_t sent_ns = 0;  ///< steady clock
};
/// Another line for the console, in its turn.
struct ConsoleLine {
  std::string text;
};

MetricRecord record_of(const MetricsReport& report);
MetricRecord record_of(const ValidationReport& report);

/// Rank 0's reports, on their way to the console and to the sinks. The actor has its own thread, since files and
/// sockets may make it wait. Only the sender of FinishMetrics waits for it, at the end of the run and with a deadline.
struct FinishMetrics {
  std::chrono::milliseconds patience{0};  ///< for the records that sinks have on their way
  bool failed = false;                    ///< the run ends with an error
  std::string error;                      ///< that one, in a line
  int signal = 0;                         ///< that stopped the run; 0: none did
};
using MetricsActor =
    caf::typed_actor<caf::reacts_to<MetricsReport>, caf::reacts_to<ValidationReport>, caf::reacts_to<ConsoleLine>,
                     caf::reacts_to<MetricRecord>, caf::replies_to<FinishMetrics>::with<bool>>;

struct MetricsOptions {
  std::vector<std::shared_ptr<MetricSink>> sinks;
  std::uint64_t generation = 0;  ///< of the membership that this rank 0 begins with
  /// Of a rank 0 that died; called before this actor's first record, on the actor's thread.
  std::function<EarlierRecords()> earlier;
  std::function<void(const MetricsReport&)> on_report;
  std::function<void(const ValidationReport&)> on_validation;
  std::function<void(const std::string&)> on_line;
  std::function<void(const std::string&)> warn;  ///< a sink's first failure, in one line
  /// Warnings that a written record gives reason for: lines, mostly none. They go to on_warning, and are kept as
  /// events.
  std::function<std::vector<std::string>(const MetricRecord&)> judge;
  std::function<void(const std::string&)> on_warning;
  std::shared_ptr<TraceRecorder> trace;  ///< may be empty
};

struct MetricsState {
  MetricsActor::behavior_type make_behavior();
  void write(const MetricRecord& record);
  void begin(const MetricRecord& first);
  void finish(const FinishMetrics& message);
  void judge(const MetricRecord& record);
  void note_validation(const MetricRecord& record);
  template <class Work>
  void attempt(std::size_t sink, Work&& work);
  MetricsActor::pointer self = nullptr;
  MetricsOptions options;
  bool begun = false;
  std::optional<std::int64_t> validated;  // the step whose validation is the last record but for events
  MetricRecord last;                      // with step and epoch alone: the place of the end record
  std::vector<bool> told;                 // of each sink: it has failed
  static inline const char* name = "metrics";
};

MetricsActor::behavior_type metrics(MetricsActor::stateful_pointer<MetricsState> self, MetricsOptions options);

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::MetricsReport)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::ValidationReport)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::ConsoleLine)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::MetricRecord)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::FinishMetrics)
