#include "tests/differential/notes.hpp"

#include <algorithm>

#include "tests/differential/json_numbers.hpp"

namespace troupe::differential {

nlohmann::json note_of_step(const StepReport& report, bool main) {
  return {{"step", report.step},
          {"main", main},
          {"committed", report.committed},
          {"loss", json_number(report.loss)},
          {"samples", json_number(report.samples)},
          {"correct", json_number(report.correct)},
          {"norm", json_number(report.gradient_norm)},
          {"rate", json_number(report.lr)},
          {"scale", json_number(report.loss_scale)}};
}

nlohmann::json note_of_call() { return {{"called", true}}; }

nlohmann::json note_of_output(std::int64_t step, at::ScalarType type) {
  return {{"step", step}, {"type", c10::toString(type)}};
}

nlohmann::json note_of_samples(const Job& job, const Batch& batch, const DataShard& shard) {
  const auto of_step = std::min<std::int64_t>(job.batch_size, job.samples - batch.step * job.batch_size);
  const auto begin = of_step * batch.micro_batch / job.accumulate,
             end = of_step * (batch.micro_batch + 1) / job.accumulate;
  const auto part = std::int64_t{job.batch_size} / job.accumulate;
  const auto first = batch.step * job.batch_size + begin + (end - begin) * (part * shard.index / shard.count) / part;
  const auto numbers = batch.index.contiguous();
  const auto* index = numbers.data_ptr<std::int64_t>();
  return {
      {"epoch", batch.epoch}, {"first", first}, {"samples", std::vector<std::int64_t>(index, index + batch.counted)}};
}

void Notes::add(const nlohmann::json& note) {
  std::lock_guard lock(mutex_);
  if (note.contains("called")) {
    ++outcome_.between_steps;
  } else if (note.contains("type")) {
    types_[note["step"]] = note["type"];
  } else if (note.contains("epoch")) {
    std::int64_t position = note["first"];
    for (const std::int64_t sample : note["samples"]) order_[note["epoch"]][position++] = sample;
  } else {
    const std::int64_t step = note["step"];
    if (!note["main"] && outcome_.steps.contains(step)) return;
    outcome_.steps[step] = {note["committed"],          number_of(note["loss"]), number_of(note["samples"]),
                            number_of(note["correct"]), number_of(note["norm"]), number_of(note["rate"]),
                            number_of(note["scale"])};
  }
}

void Notes::finish() {
  for (auto& [step, seen] : outcome_.steps) seen.type = types_[step];
}

}  // namespace troupe::differential
