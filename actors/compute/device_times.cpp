#include "actors/compute/device_times.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

void DeviceTimes::reset(c10::Device device) {
  device_ = device;
  steps_.clear();
  drop_step();
}

TimedMark DeviceTimes::now() { return timer_.mark(DeviceStream::current(device_)); }

void DeviceTimes::begin_section() { since_ = now(); }

void DeviceTimes::end_section(Part part, const Waits& waits) {
  if (device_.is_cpu()) return;
  const bool forward = part == Part::forward;
  auto until = now();
  step_.push_back({forward ? Kind::forward : Kind::backward, {std::exchange(since_, until), until}});
  for (const auto& wait : waits) step_.push_back({forward ? Kind::waits_of_forward : Kind::waits_of_backward, wait});
}

void DeviceTimes::end_backward() { backward_ended_ = now(); }

void DeviceTimes::end_reduction(const std::vector<TimedInterval>& collectives, const Waits& waits) {
  if (device_.is_cpu()) return;
  for (const auto& collective : collectives) step_.push_back({Kind::reduce, collective});
  if (!collectives.empty()) step_.push_back({Kind::exposed, {backward_ended_, collectives.back().end}});
  for (const auto& wait : waits) step_.push_back({Kind::exposed, wait});
  backward_ended_ = nullptr;
  steps_.push_back(std::exchange(step_, {}));
}

void DeviceTimes::drop_step() {
  step_.clear();
  since_ = backward_ended_ = nullptr;
}

void DeviceTimes::add(const Step& step, Sums& sums) {
  double ms[6] = {};
  for (const auto& entry : step) ms[static_cast<std::size_t>(entry.kind)] += milliseconds_of(entry.interval);
  const auto of = [&](Kind kind) { return ms[static_cast<std::size_t>(kind)]; };
  ++sums.steps;
  sums.exposed += of(Kind::exposed);
  sums.reduce += of(Kind::reduce);
  sums.inside += of(Kind::waits_of_forward) + of(Kind::waits_of_backward);
  sums.forward += std::max(0.0, of(Kind::forward) - of(Kind::waits_of_forward));
  sums.backward += std::max(0.0, of(Kind::backward) - of(Kind::waits_of_backward));
}

// A step's marks are in several streams, so all are asked. Steps end in order.
DeviceTimes::Sums DeviceTimes::take() {
  Sums all;
  for (; !steps_.empty(); steps_.pop_front()) {
    const auto& step = steps_.front();
    if (!std::all_of(step.begin(), step.end(), [](const Entry& entry) { return is_over(entry.interval); })) break;
    add(step, all);
  }
  return all;
}

}  // namespace troupe
