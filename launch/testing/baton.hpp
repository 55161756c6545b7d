#pragma once
#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "launch/testing/thread_schedule.hpp"

namespace troupe::testing {

/// True. A call of it links the file that defines the C library's calls.
bool calls_hand_on() noexcept;

/// A thread that a schedule governs.
struct ScheduledThread {
  enum class State { ready, waits, ended };
  int number = 0;
  State state = State::ready;
  const void* waits_for = nullptr;  ///< an address that others name when they wake it; nullptr: a deadline alone
  const char* call = "";            ///< that waits
  std::chrono::nanoseconds deadline = std::chrono::nanoseconds::max();
  bool timed_out = false;
  std::atomic<std::uint32_t> turn{0};  ///< 1: it has the baton
  pthread_t handle{};
  std::atomic<pid_t> tid{0};  ///< the kernel's number, once it runs
};

/// The threads that run and wait, and the time. All calls but `wake` and `begin` come from the thread that has the
/// baton. Its own lock is a spin lock: it is held for some instructions, and makes none of the calls that hand on the
/// baton.
class Baton {
 public:
  using Time = std::chrono::nanoseconds;
  static constexpr Time kNever = Time::max();

  explicit Baton(const ThreadScheduleOptions& options);

  /// The schedule of this process, if it governs the calling thread; else nullptr.
  static Baton* mine() noexcept;
  /// The schedule of this process, for any thread; nullptr: there is none.
  static Baton* any() noexcept;
  void adopt_caller();
  void release();

  /// Another thread may run first.
  void may_hand_on();
  /// Another that is ready runs first; if none is, time passes.
  void yield();
  /// Waits until woken by this address; false: the deadline came. `before` is called when the thread counts as waiting
  /// and still has the baton.
  template <class Before>
  bool wait(const void* address, const char* call, Time deadline, Before before) {
    begin_wait(address, call, deadline);
    before();
    return end_wait();
  }
  bool wait(const void* address, const char* call, Time deadline = kNever) {
    return wait(address, call, deadline, [] {});
  }
  /// In `before`: its condition is there.
  void stop_waiting();
  /// Wakes threads that wait for this address, `most` of them, drawn. Returns their number. Any thread.
  int wake(const void* address, int most = 1 << 30);

  /// A thread that will begin; it waits in `begin` for the baton.
  ScheduledThread* start();
  void begin(ScheduledThread* thread);
  void end();
  ScheduledThread* find(pthread_t handle);
  bool governs(pid_t tid);

  Time now() const noexcept { return now_; }
  Time read_clock() noexcept { return now_ += kLook; }
  /// The reading of a system's clock at `now`.
  Time on(clockid_t clock) noexcept;
  /// A time of that clock in terms of `now`.
  Time from(clockid_t clock, const timespec& time) const noexcept;
  std::uint64_t fingerprint() const noexcept { return fingerprint_; }
  std::uint64_t switches() const noexcept { return switches_; }

  /// Addresses of objects that are made once, while that goes on.
  std::set<const void*> being_made;

 private:
  class Guard;
  static constexpr Time kLook{20};  // so that a loop that looks at the clock ends

  void begin_wait(const void* address, const char* call, Time deadline);
  bool end_wait();
  void note(std::uint64_t what) noexcept { fingerprint_ = (fingerprint_ ^ what) * 1099511628211ULL; }
  std::size_t draw_candidate();
  ScheduledThread* next();
  void pass_on(ScheduledThread* from);
  void say_stuck();
  [[noreturn]] void give_up();

  const ThreadScheduleOptions options_;
  std::mt19937_64 draw_;
  std::atomic_flag lock_ = ATOMIC_FLAG_INIT;
  std::deque<ScheduledThread> threads_;       // by number; they stay
  std::vector<ScheduledThread*> candidates_;  // of one draw
  Time now_{0};
  Time real_time_base_{0}, steady_base_{0};
  std::uint64_t fingerprint_ = 14695981039346656037ULL, switches_ = 0;
};

}  // namespace troupe::testing
