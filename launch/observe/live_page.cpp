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

std::string LiveRecords::from(std::int64_t after, std::size_t most_bytes) const {
  const std::lock_guard lock(mutex_);
  const auto next = first_ + static_cast<std::int64_t>(lines_.size());
  std::string text;
  bool comma = false;
  const auto append = [&](const std::string& line) {
    if (std::exchange(comma, true)) text += ",\n";
    text += line;
  };
  if (membership_at_ >= after && membership_at_ < first_) append(membership_);
  auto i = static_cast<std::size_t>(std::clamp(after, first_, next) - first_);
  while (i < lines_.size() && text.size() < most_bytes) append(lines_[i++]);
  const auto quoted = [](const std::string& words) {
    return nlohmann::json(words).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  return "{\"job_id\":" + quoted(job_id_) + ",\"run\":" + quoted(run_) + ",\"life\":" + std::to_string(::getpid()) +
         ",\"next\":" + std::to_string(first_ + static_cast<std::int64_t>(i)) +
         ",\"more\":" + (i < lines_.size() ? "true" : "false") + ",\"records\":[" + text + "]}";
}

}  // namespace troupe
