#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>

#include "actors/metrics/metric.hpp"

namespace troupe {

/// live_page.html: one page, whole in itself, that asks /records of the server that it came from once a second.
std::string_view live_page() noexcept;

/// The content of the live page: the last records of the run, as lines of metrics.jsonl, within `most_bytes`. Any
/// thread.
class LiveRecords {
 public:
  /// `run`: the run's name; may be empty.
  explicit LiveRecords(std::string job_id, std::string run = {}, std::size_t most_bytes = std::size_t{4} << 20)
      : job_id_(std::move(job_id)), run_(std::move(run)), most_(most_bytes) {}
  void add(const MetricRecord& record);
  /// `{"job_id": …, "run": …, "life": …, "next": N, "more": …, "records": […]}`: those with a number from `after` on;
  /// the next request has `after=N`. A reader of another `life` begins anew: another process is rank 0. The last change
  /// of membership stays, however old it is. An answer ends after `most_bytes`; there is `more` then.
  std::string from(std::int64_t after, std::size_t most_bytes = std::size_t{256} << 10) const;

 private:
  const std::string job_id_, run_;
  const std::size_t most_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::deque<std::string> lines_;
  std::string membership_;           // the last one, once it is no longer among the lines
  std::int64_t membership_at_ = -1;  // its number
  std::int64_t first_ = 0;           // number of lines_.front()
  std::size_t bytes_ = 0;
};

}  // namespace troupe
