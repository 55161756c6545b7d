#include "launch/observe/mlflow_sink.hpp"

#include <utility>
#include <vector>

namespace troupe {

MlflowSink::MlflowSink(MlflowRunInfo info) : client_(std::move(info)), thread_([this] { deliver(); }) {}

MlflowSink::~MlflowSink() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  client_.stop();
  changed_.notify_all();
  thread_.join();
}

void MlflowSink::write(const MetricRecord& record) {
  const std::scoped_lock lock(mutex_);
  if (!record.values.empty()) waiting_.push_back(record);
  while (waiting_.size() > kWaiting) {
    waiting_.pop_front();
    ++dropped_;
  }
  changed_.notify_all();
  if (failure_) throw Error(*failure_);
}

void MlflowSink::take_over(const std::vector<MetricRecord>& written) {
  const std::scoped_lock lock(mutex_);
  waiting_.assign(written.begin(), written.end());
  changed_.notify_all();
}

void MlflowSink::finish(std::chrono::steady_clock::time_point deadline, bool failed) {
  std::unique_lock lock(mutex_);
  ending_ = true;
  failed_ = failed;
  changed_.notify_all();
  changed_.wait_until(lock, deadline, [&] { return ended_; });
  const auto lost = dropped_ + waiting_.size();
  if (lost == 0 && ended_) return;
  const auto& kept = client_.info().kept;
  throw Error(ErrorCode::unavailable, "end of the run",
              std::to_string(lost) + " records did not reach the server" +
                  (failure_ ? " (" + failure_->cause + ")" : "") +
                  (kept.empty() ? ", and they are lost: without a run_dir no file has them" : ""),
              kept.empty() ? "" : "they are in " + kept);
}

void MlflowSink::deliver() {
  std::unique_lock lock(mutex_);
  while (!stop_ && !ended_) {
    changed_.wait(lock, [&] { return stop_ || ending_ || !waiting_.empty(); });
    if (stop_) break;
    const std::vector<MetricRecord> records(waiting_.begin(), waiting_.end());
    const bool last = ending_;
    const auto dropped = dropped_;
    lock.unlock();
    const bool delivered = deliver_once(records, last);
    lock.lock();
    if (delivered) {
      const auto gone =
          std::min(records.size(), dropped_ - dropped);  // pushed out meanwhile, and delivered nevertheless
      dropped_ -= gone;
      waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(records.size() - gone));
      ended_ = last && waiting_.empty();
      changed_.notify_all();
    } else {
      changed_.wait_for(lock, kPauseAfterFailure, [&] { return stop_ || ending_ != last; });
    }
  }
}

bool MlflowSink::deliver_once(const std::vector<MetricRecord>& records, bool last) {
  std::optional<ErrorReport> failure;
  try {
    client_.begin();
    client_.log(records);
    if (last) client_.end(failed_ ? "FAILED" : "FINISHED");
  } catch (const Error& error) {
    failure = error.report();
  } catch (const std::exception& error) {
    failure = ErrorReport{ErrorCode::unavailable, -1, {}, -1, {}, error.what(), {}};
  }
  const std::scoped_lock lock(mutex_);
  failure_ = failure;
  return !failure;
}

}  // namespace troupe
