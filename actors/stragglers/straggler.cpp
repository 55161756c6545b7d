#include "actors/stragglers/straggler.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace troupe {
namespace {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

double median_without(std::vector<double> values, std::size_t left_out) {
  values.erase(values.begin() + static_cast<std::ptrdiff_t>(left_out));
  return median(std::move(values));
}

template <class Value>
std::vector<double> medians(const std::vector<std::vector<SectionTimes>>& recent, Value value) {
  std::vector<double> found;
  for (const auto& steps : recent) {
    std::vector<double> values;
    values.reserve(steps.size());
    for (const auto& step : steps) values.push_back(value(step));
    found.push_back(median(std::move(values)));
  }
  return found;
}

}  // namespace

std::string Straggler::describe() const {
  char numbers[96];
  std::snprintf(numbers, sizeof numbers, "%.1f ms of work in a step, %.1f times the others' median", own_ms, ratio);
  return "rank " + std::to_string(rank) + (host.empty() ? "" : " (" + host + ")") + " is slow: " + numbers +
         ", most of it in " + section;
}

void StragglerWatch::reset() {
  steps_ = 0;
  recent_.clear();
  slow_.clear();
}

bool StragglerWatch::add(std::span<const SectionTimes> by_rank) {
  if (by_rank.size() != recent_.size()) {
    reset();
    recent_.resize(by_rank.size());
  }
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    auto& ring = recent_[r];
    if (ring.size() < kWindow) {
      ring.push_back(by_rank[r]);
    } else {
      ring[steps_ % kWindow] = by_rank[r];
    }
  }
  ++steps_;
  if (by_rank.size() < 2 || steps_ < kWindow || steps_ % kEvery != 0) return false;
  return look();
}

bool StragglerWatch::look() {
  const auto totals = medians(recent_, [](const SectionTimes& step) { return step.total_ms(); });
  std::vector<double> deviations;
  for (std::size_t r = 0; r < recent_.size(); ++r) {
    for (const auto& step : recent_[r]) deviations.push_back(std::abs(step.total_ms() - totals[r]));
  }
  // Of the difference of two medians; a median's own standard error is 1.2533 that of a mean, for normal noise.
  const double sigma = 1.4826 * median(std::move(deviations));
  const double error = 1.2533 * sigma * std::sqrt(2.0 / static_cast<double>(kWindow));

  std::vector<Straggler> found;
  for (std::size_t r = 0; r < totals.size(); ++r) {
    const double others = median_without(totals, r);
    const bool known =
        std::any_of(slow_.begin(), slow_.end(), [&](const Straggler& s) { return s.rank == static_cast<int>(r); });
    const bool over = totals[r] >= (known ? kRecovered : kRatio) * others;
    const double difference = totals[r] - others;
    if (!over || difference < kMinimumMs || (!known && difference < kSigmas * error)) continue;
    Straggler straggler;
    straggler.rank = static_cast<int>(r);
    straggler.own_ms = totals[r];
    straggler.others_ms = others;
    straggler.ratio = others > 0 ? totals[r] / others : totals[r] / kMinimumMs;
    double most = -1;
    const auto consider = [&](const char* name, auto value) {
      const auto by_rank = medians(recent_, value);
      const double more = by_rank[r] - median_without(by_rank, r);
      if (more > most) most = more, straggler.section = name;
    };
    consider("data", [](const SectionTimes& step) { return step.data_ms; });
    consider("forward", [](const SectionTimes& step) { return step.forward_ms; });
    consider("backward", [](const SectionTimes& step) { return step.backward_ms; });
    found.push_back(std::move(straggler));
  }
  const bool changed = !std::equal(found.begin(), found.end(), slow_.begin(), slow_.end(),
                                   [](const Straggler& a, const Straggler& b) { return a.rank == b.rank; });
  slow_ = std::move(found);
  return changed;
}

}  // namespace troupe
