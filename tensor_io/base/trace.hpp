#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor_io/base/span_ranges.hpp"
#include "tensor_io/base/steady_time.hpp"

namespace troupe {

/// An action of a rank's thread over some time, or a message that reached it. Times are of the steady clock.
struct TraceEvent {
  enum class Kind : std::uint8_t {
    span,        ///< an actor handles a message, a loader a batch
    step,        ///< a whole optimizer step
    phase,       ///< of a step: data, forward, backward, wait, vote, optimizer
    wait,        ///< within a phase, for another thread of the rank
    collective,  ///< the thread was in it; `detail` is its label
    block,       ///< a block's forward or backward
    user,        ///< TraceSpan of a program
    operation,   ///< an operator of LibTorch
    message,     ///< sent by the track `from` at begin_ns, taken by this one at end_ns
    launch,      ///< a call that started a kernel: `correlation` is the kernel's, too
    kernel       ///< on a device: `stream`, `correlation`
  };
  Kind kind = Kind::span;
  std::int64_t begin_ns = 0, end_ns = 0;
  std::array<char, 64> name{};    ///< NUL terminated; cut if longer
  std::array<char, 48> detail{};  ///< as name
  const char* from = nullptr;     ///< of a message: a literal
  std::int64_t numel = -1;        ///< of a collective: this rank's contribution; -1: none
  std::int64_t step = -1;         ///< -1: not known
  std::int8_t dtype = -1;         ///< at::ScalarType; -1: none
  std::int32_t stream = -1;
  std::int64_t correlation = -1;

  /// Copies the name, cut to its room.
  void set_name(std::string_view text) noexcept;
  /// Copies the detail, cut to its room.
  void set_detail(std::string_view text) noexcept;
};

class TraceRecorder;

/// The records of one thread, mostly an actor's. Its own thread adds, the recorder reads: a lock without contention.
class TraceTrack {
 public:
  TraceTrack(std::string name, TraceRecorder& recorder) : name_(std::move(name)), recorder_(recorder) {}
  /// The name of the track.
  const std::string& name() const noexcept { return name_; }
  /// Whether the recorder records now.
  inline bool recording() const noexcept;
  /// When the recorder began, on the steady clock.
  std::int64_t began_ns() const noexcept;
  /// The calling thread is the one that adds.
  void set_thread() noexcept;
  /// Whether its number is `id`: the system's, or the lower half of the result of pthread_self(). Any thread.
  bool is_of_thread(std::int64_t id) const noexcept;
  /// Any thread. Dropped, and counted, if the rank's limit is reached.
  void add(const TraceEvent& event);

 private:
  friend class TraceRecorder;
  const std::string name_;
  TraceRecorder& recorder_;
  std::atomic<std::int32_t> system_thread_{0}, pthread_{0};  // 0: not known
  std::mutex mutex_;
  std::vector<TraceEvent> events_;  // guarded by mutex_
};

/// The spans of one rank while its window is open. A rank without `--profile steps=…` has none: its threads find a null
/// pointer, and nothing is allocated or locked. Any thread.
class TraceRecorder {
 public:
  /// Events of a rank, over all its tracks; later ones are dropped: 200 bytes each here, and as much in the file.
  static constexpr std::int64_t kLimit = 200'000;
  explicit TraceRecorder(std::int64_t limit = kLimit) : limit_(limit) {}

  /// Begins to record.
  void start();
  /// Stops recording; the records stay.
  void stop() { recording_.store(false, std::memory_order_release); }
  /// Whether it records now.
  bool recording() const noexcept { return recording_.load(std::memory_order_acquire); }
  /// When recording began, on the steady clock.
  std::int64_t began_ns() const noexcept { return began_ns_.load(std::memory_order_relaxed); }
  /// Makes the track if it is missing. It lives as long as the recorder.
  TraceTrack& track(std::string_view name);
  /// The track whose thread joined with that number (TraceTrack::is_of_thread); nullptr: none.
  TraceTrack* track_of_thread(std::int64_t id);

  /// The events of all tracks.
  struct Recorded {
    std::vector<std::pair<std::string, std::vector<TraceEvent>>> tracks;  ///< in the order in which they were made
    std::int64_t dropped = 0;
  };
  /// The records so far; the recorder drops them.
  Recorded take();

 private:
  friend class TraceTrack;
  const std::int64_t limit_;
  std::atomic<bool> recording_{false};
  std::atomic<std::int64_t> began_ns_{0}, count_{0};
  std::mutex mutex_;
  std::vector<std::unique_ptr<TraceTrack>> tracks_;  // guarded by mutex_
};

inline bool TraceTrack::recording() const noexcept { return recorder_.recording(); }

namespace internal {
constinit inline thread_local TraceTrack* thread_track = nullptr;
}  // namespace internal

/// The calling thread's track if its rank records now, or nullptr: a load and a branch if no trace was requested.
inline TraceTrack* active_track() noexcept {
  auto* track = internal::thread_track;
  return track != nullptr && track->recording() ? track : nullptr;
}
/// The recorder of the calling thread's rank: for the threads that this one starts. May be empty.
const std::shared_ptr<TraceRecorder>& trace_recorder() noexcept;
/// From now on the calling thread's records go to this track of `recorder`; empty: nowhere. A profiler that shows spans
/// (SpanRanges) gives the thread this name, too.
void join_trace(std::shared_ptr<TraceRecorder> recorder, std::string_view track);

/// A span of the program in the trace, from here to the end of the scope:
///
///     const troupe::TraceSpan span("tokenise");
///
/// On a thread of a rank, or on one that called join_trace. Without a trace, or outside of its window, it does nothing.
/// Spans of a thread nest. If spans are ranges (SpanRanges), it is a range of any thread, with or without a trace.
class TraceSpan {
 public:
  explicit TraceSpan(std::string_view name, TraceEvent::Kind kind = TraceEvent::Kind::user)
      : range_(name), track_(active_track()) {
    if (track_ != nullptr) begin(name, kind);
  }
  ~TraceSpan() {
    if (track_ != nullptr) end();
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  void begin(std::string_view name, TraceEvent::Kind kind) noexcept;
  void end() noexcept;
  OpenRange range_;
  TraceTrack* track_;
  TraceEvent::Kind kind_;  // this and the following: only with a track
  std::int64_t begin_ns_;
  std::array<char, 64> name_;
};

/// As a TraceSpan that began at `begin_ns` and ends now.
inline void trace_since(std::int64_t begin_ns, std::string_view name, TraceEvent::Kind kind = TraceEvent::Kind::phase);
/// A phase of a step, from here to `end`, for those who measure its time anyway: it is in the trace even if recording
/// began within it. One that does not end (an exception) is in no trace. If spans are ranges, it is one. One thread.
class TracePhase {
 public:
  /// `name`: a literal.
  explicit TracePhase(const char* name) noexcept
      : name_(name), range_(name), began_(std::chrono::steady_clock::now()) {}
  std::chrono::steady_clock::time_point began() const noexcept { return began_; }  ///< When it began.
  inline void end();                                                               ///< It ends now. Once.

 private:
  const char* name_;
  OpenRange range_;
  std::chrono::steady_clock::time_point began_;
};

/// A message that the track `from` of this rank sent at `sent_ns` is taken now by this thread.
inline void trace_message(const char* name, const char* from, std::int64_t sent_ns);

namespace internal {
void add_since(TraceTrack& track, std::int64_t begin_ns, std::string_view name, TraceEvent::Kind kind);
void add_message(TraceTrack& track, const char* name, const char* from, std::int64_t sent_ns);
}  // namespace internal

inline void trace_since(std::int64_t begin_ns, std::string_view name, TraceEvent::Kind kind) {
  if (auto* track = active_track()) internal::add_since(*track, begin_ns, name, kind);
}
inline void TracePhase::end() {
  trace_since(began_.time_since_epoch().count(), name_);
  range_.end();
}
inline void trace_message(const char* name, const char* from, std::int64_t sent_ns) {
  if (auto* track = active_track()) internal::add_message(*track, name, from, sent_ns);
}

}  // namespace troupe
