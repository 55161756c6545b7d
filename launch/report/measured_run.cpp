#include "launch/report/measured_run.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace troupe {
namespace {

// Shares as percentages.
StepPoints in_percent(StepPoints points) {
  for (auto& point : points) point.second *= 100;
  return points;
}

bool has_positive(const StepPoints& points) {
  return std::any_of(points.begin(), points.end(), [](const auto& point) { return point.second > 0; });
}

// Nothing if all are 0.
StepPoints if_positive(StepPoints points) { return has_positive(points) ? std::move(points) : StepPoints(); }

}  // namespace

StepPoints by_step(StepPoints points) {
  std::stable_sort(points.begin(), points.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return points;
}

StepPoints series(const RunHistory& run, MetricRecord::Kind kind, const char* name) {
  StepPoints points;
  for (const auto& record : run.records) {
    if (record.kind != kind) continue;
    const auto found = std::find_if(record.values.begin(), record.values.end(),
                                    [&](const auto& entry) { return std::strcmp(entry.first->name, name) == 0; });
    if (found != record.values.end()) points.emplace_back(static_cast<double>(record.step), found->second);
  }
  return by_step(std::move(points));
}

std::pair<double, double> lowest(const StepPoints& points) {
  return *std::min_element(points.begin(), points.end(), [](const auto& a, const auto& b) {
    return std::isfinite(a.second) && (!std::isfinite(b.second) || a.second < b.second);
  });
}

std::pair<double, double> highest(const StepPoints& points) {
  return *std::max_element(points.begin(), points.end(), [](const auto& a, const auto& b) {
    return std::isfinite(b.second) && (!std::isfinite(a.second) || a.second < b.second);
  });
}

MeasuredRun::MeasuredRun(RunHistory read) : history(std::move(read)), numbers(numbers_of(history.records)) {
  const auto train = [&](const char* name) { return series(history, MetricRecord::Kind::train, name); };
  const auto validation = [&](const char* name) { return series(history, MetricRecord::Kind::validation, name); };
  loss = train("loss_metrics/global_avg_loss");
  held_out_loss = validation("validation_metrics/loss");
  accuracy = in_percent(train("accuracy"));
  held_out_accuracy = in_percent(validation("validation_metrics/accuracy"));
  if (!has_positive(accuracy) && !has_positive(held_out_accuracy)) {
    accuracy.clear();  // nothing counts: all are 0
    held_out_accuracy.clear();
  }
  learning_rate = train("lr");
  memory = if_positive(train("memory/max_resident(GiB)"));
  device_memory = if_positive(train("memory/max_active(GiB)"));
  device_reserved = if_positive(train("memory/max_reserved(GiB)"));
}

}  // namespace troupe
