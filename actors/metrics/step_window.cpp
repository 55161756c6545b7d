#include "actors/metrics/step_window.hpp"

#include <algorithm>

namespace troupe {

void SectionSums::add(const std::vector<SectionTimes>& ranks) {
  if (ranks.empty()) return;
  if (sums_.size() != ranks.size()) {
    sums_.assign(ranks.size(), {});
    steps_ = 0;
  }
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    sums_[r].data_ms += ranks[r].data_ms;
    sums_[r].forward_ms += ranks[r].forward_ms;
    sums_[r].backward_ms += ranks[r].backward_ms;
  }
  ++steps_;
}

std::vector<SectionTimes> SectionSums::means() const {
  auto means = sums_;
  const auto n = static_cast<float>(std::max<std::int64_t>(1, steps_));
  for (auto& mean : means) mean = {mean.data_ms / n, mean.forward_ms / n, mean.backward_ms / n};
  return means;
}

void StepWindow::add(const StepReport& report) {
  if (steps == 0) first_step = report.step;
  ++steps;
  if (!report.committed) ++skipped;
  if (report.committed) {
    loss_sum += report.loss * report.samples;
    samples += report.samples;
    correct += report.correct;
    if (report.samples > 0) max_loss = std::max(max_loss, report.max_loss);
    logged.add(report.logged);
  }
  times.add(report);
  sections.add(report.own);
  buckets.bytes += report.bucket_bytes;
  buckets.number += report.buckets;
  last_lr = report.lr;
  last_norm = report.gradient_norm;
  last_loss_scale = report.loss_scale;
  stragglers = report.stragglers;
}

}  // namespace troupe
