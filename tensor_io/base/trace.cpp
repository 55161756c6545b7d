#include "tensor_io/base/trace.hpp"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace troupe {
namespace {

template <std::size_t kBytes>
void copy_text(std::array<char, kBytes>& to, std::string_view text) noexcept {
  const auto length = std::min(text.size(), kBytes - 1);
  std::copy_n(text.begin(), length, to.begin());
  to[length] = '\0';
}

std::shared_ptr<TraceRecorder>& thread_recorder() noexcept {
  thread_local std::shared_ptr<TraceRecorder> recorder;
  return recorder;
}

}  // namespace

void TraceEvent::set_name(std::string_view text) noexcept { copy_text(name, text); }
void TraceEvent::set_detail(std::string_view text) noexcept { copy_text(detail, text); }

std::int64_t TraceTrack::began_ns() const noexcept { return recorder_.began_ns(); }

void TraceTrack::set_thread() noexcept {
  system_thread_ = static_cast<std::int32_t>(::syscall(SYS_gettid));
  pthread_ = static_cast<std::int32_t>(::pthread_self());
}

bool TraceTrack::is_of_thread(std::int64_t id) const noexcept {
  const auto number = static_cast<std::int32_t>(id);
  return number != 0 && (number == system_thread_ || number == pthread_);
}

void TraceTrack::add(const TraceEvent& event) {
  if (recorder_.count_.fetch_add(1, std::memory_order_relaxed) >= recorder_.limit_) return;
  try {
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
  } catch (const std::exception&) {  // no memory: the event is not worth the run
  }
}

void TraceRecorder::start() {
  began_ns_.store(steady_now_ns(), std::memory_order_relaxed);
  recording_.store(true, std::memory_order_release);
}

TraceTrack& TraceRecorder::track(std::string_view name) {
  const std::lock_guard lock(mutex_);
  for (const auto& track : tracks_) {
    if (track->name() == name) return *track;
  }
  return *tracks_.emplace_back(std::make_unique<TraceTrack>(std::string(name), *this));
}

TraceTrack* TraceRecorder::track_of_thread(std::int64_t id) {
  const std::lock_guard lock(mutex_);
  for (const auto& track : tracks_) {
    if (track->is_of_thread(id)) return track.get();
  }
  return nullptr;
}

TraceRecorder::Recorded TraceRecorder::take() {
  Recorded recorded;
  const std::lock_guard lock(mutex_);
  for (const auto& track : tracks_) {
    const std::lock_guard track_lock(track->mutex_);
    recorded.tracks.emplace_back(track->name(), std::exchange(track->events_, {}));
  }
  recorded.dropped = std::max<std::int64_t>(0, count_.exchange(0, std::memory_order_relaxed) - limit_);
  return recorded;
}

const std::shared_ptr<TraceRecorder>& trace_recorder() noexcept { return thread_recorder(); }

void join_trace(std::shared_ptr<TraceRecorder> recorder, std::string_view track) {
  internal::thread_track = recorder ? &recorder->track(track) : nullptr;
  if (internal::thread_track != nullptr) internal::thread_track->set_thread();
  thread_recorder() = std::move(recorder);
  name_range_thread(track);
}

void TraceSpan::begin(std::string_view name, TraceEvent::Kind kind) noexcept {
  kind_ = kind;
  copy_text(name_, name);
  begin_ns_ = steady_now_ns();
}

void TraceSpan::end() noexcept {
  TraceEvent event;
  event.kind = kind_;
  event.name = name_;
  event.begin_ns = begin_ns_;
  event.end_ns = steady_now_ns();
  track_->add(event);
}

void internal::add_since(TraceTrack& track, std::int64_t begin_ns, std::string_view name, TraceEvent::Kind kind) {
  TraceEvent event;
  event.kind = kind;
  event.set_name(name);
  event.begin_ns = std::max(begin_ns, track.began_ns());
  event.end_ns = steady_now_ns();
  track.add(event);
}

void internal::add_message(TraceTrack& track, const char* name, const char* from, std::int64_t sent_ns) {
  if (sent_ns < track.began_ns()) return;  // its sender was not recorded then
  TraceEvent event;
  event.kind = TraceEvent::Kind::message;
  event.set_name(name);
  event.from = from;
  event.begin_ns = sent_ns;
  event.end_ns = steady_now_ns();
  track.add(event);
}

}  // namespace troupe
