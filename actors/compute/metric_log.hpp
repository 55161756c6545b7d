#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "actors/step/logged_values.hpp"

namespace troupe {

/// The values that the program logs on this rank, until a vote takes them. A value belongs to the micro-batch during
/// which it was logged, and is given up with its step. A value that was logged between two micro-batches belongs to
/// none, and waits for the next step that is not given up. Compute's thread.
class MetricLog {
 public:
  /// A number, or a tensor of one element, which on a device is read no sooner than at the vote.
  using Number = std::variant<double, at::Tensor>;

  /// `weight`: in a mean; empty: that of its micro-batch, 1 between two of them. Throws Error(usage) for a name or a
  /// tensor that can't be logged.
  void add(const std::string& name, Number value, Reduce reduce, std::optional<double> weight);

  /// The first backward of a step; one before it may have been given up.
  void begin_step() { of_step_.clear(); }
  /// The forward of a micro-batch begins, perhaps again.
  void begin_micro_batch();
  /// The values logged in its forward count with this weight, as its loss does; 0: not at all.
  void end_micro_batch(double weight);
  /// Instead of end_micro_batch: another rank has the result, or the forward was a trial.
  void forget_micro_batch();
  /// The step is given up: its micro-batches come again.
  void give_up_step();
  /// The step is over, and what it logged with it.
  void end_step();

  /// For the vote: reads what is on a device.
  LoggedValues of_step() const;
  /// Of the current batch of held-out data, instead of end_micro_batch.
  LoggedValues take_micro_batch(double weight);

 private:
  struct Entry {
    std::string name;
    Number value;
    Reduce reduce;
    std::optional<double> weight;
  };
  static void count(const std::vector<Entry>& entries, LoggedValues& into);
  static void weigh(std::vector<Entry>& entries, double weight);

  bool hands_out_ = false;      // micro-batches, by begin_micro_batch
  bool in_micro_batch_ = true;  // always, in a loop that hands none out
  std::vector<Entry> pending_, of_step_, between_;
};

}  // namespace troupe
