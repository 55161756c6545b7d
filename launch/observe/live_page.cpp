#include "launch/observe/live_page.hpp"

#include <unistd.h>

#include <algorithm>

#include <nlohmann/json.hpp>

namespace troupe {

void LiveRecords::add(const MetricRecord& record) {
  auto line = to_json(record);
  const std::lock_guard lock(mutex_);
  if (record.kind == MetricRecord::Kind::event && record.generation > 0) {
    membership_ = line;
    membership_at_ = first_ + static_cast<std::int64_t>(lines_.size());
  }
  bytes_ += line.size();
  lines_.push_back(std::move(line));
  while (bytes_ > most_ && lines_.size() > 1) {
    bytes_ -= lines_.front().size();
    lines_.pop_front();
    ++first_;
  }
}

std::string LiveRecords::from(std::int64_t after) const {
  const std::lock_guard lock(mutex_);
  const auto next = first_ + static_cast<std::int64_t>(lines_.size());
  std::string text =
      "{\"job_id\":" + nlohmann::json(job_id_).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
      ",\"life\":" + std::to_string(::getpid()) + ",\"next\":" + std::to_string(next) + ",\"records\":[";
  bool comma = false;
  const auto append = [&](const std::string& line) {
    if (std::exchange(comma, true)) text += ",\n";
    text += line;
  };
  if (membership_at_ >= after && membership_at_ < first_) append(membership_);
  const auto begin = std::clamp(after, first_, next) - first_;
  for (auto i = static_cast<std::size_t>(begin); i < lines_.size(); ++i) append(lines_[i]);
  return text + "]}";
}

}  // namespace troupe
