#include "launch/testing/baton.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>

#include "launch/testing/real_calls.hpp"

namespace troupe::testing {
namespace {

using namespace std::chrono_literals;

std::atomic<Baton*> of_process{nullptr};
thread_local ScheduledThread* of_thread = nullptr;

void sleep_until_turn(ScheduledThread& thread) {
  while (thread.turn.load(std::memory_order_acquire) == 0)
    real::syscall(SYS_futex, reinterpret_cast<long>(&thread.turn), FUTEX_WAIT_PRIVATE, 0, 0, 0, 0);
  thread.turn.store(0, std::memory_order_relaxed);
}

void give_turn(ScheduledThread& thread) {
  thread.turn.store(1, std::memory_order_release);
  real::syscall(SYS_futex, reinterpret_cast<long>(&thread.turn), FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
}

Baton::Time real_time(clockid_t clock) {
  timespec time{};
  real::clock_gettime(clock, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

pid_t own_tid() { return static_cast<pid_t>(real::syscall(SYS_gettid, 0, 0, 0, 0, 0, 0)); }

bool is_of_day(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

}  // namespace

class Baton::Guard {
 public:
  explicit Guard(Baton& baton) : flag_(baton.lock_) {
    while (flag_.test_and_set(std::memory_order_acquire)) real::sched_yield();
  }
  ~Guard() { flag_.clear(std::memory_order_release); }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  std::atomic_flag& flag_;
};

// A fixed time of day: what writes it down writes the same in each run.
Baton::Baton(const ThreadScheduleOptions& options)
    : options_(options),
      draw_(options.seed),
      real_time_base_(std::chrono::seconds(1'700'000'000)),
      steady_base_(std::chrono::seconds(1'000)) {}

Baton* Baton::mine() noexcept { return of_thread != nullptr ? any() : nullptr; }
Baton* Baton::any() noexcept { return of_process.load(std::memory_order_acquire); }

void Baton::adopt_caller() {
  of_thread = &threads_.emplace_back();
  of_thread->handle = ::pthread_self();
  of_thread->tid = own_tid();
  of_process.store(this, std::memory_order_release);
}

void Baton::release() {
  const auto left = std::count_if(threads_.begin(), threads_.end(), [](const auto& thread) {
    return &thread != of_thread && thread.state != ScheduledThread::State::ended;
  });
  if (left > 0) {
    std::fprintf(stderr, "troupe::testing: %ld threads outlive their schedule\n", static_cast<long>(left));
    give_up();
  }
  of_process.store(nullptr, std::memory_order_release);
  of_thread = nullptr;
}

void Baton::may_hand_on() {
  if (std::uniform_real_distribution<double>()(draw_) >= options_.hands_on) return;
  Guard guard(*this);
  pass_on(of_thread);
}

void Baton::yield() {
  Guard guard(*this);
  const bool others = std::any_of(threads_.begin(), threads_.end(), [](const auto& thread) {
    return &thread != of_thread && thread.state == ScheduledThread::State::ready;
  });
  if (!others) now_ += 10us;
  pass_on(of_thread);
}

void Baton::begin_wait(const void* address, const char* call, Time deadline) {
  Guard guard(*this);
  of_thread->state = ScheduledThread::State::waits;
  of_thread->waits_for = address;
  of_thread->call = call;
  of_thread->deadline = deadline;
  of_thread->timed_out = false;
}

void Baton::stop_waiting() {
  Guard guard(*this);
  of_thread->state = ScheduledThread::State::ready;
}

bool Baton::end_wait() {
  Guard guard(*this);
  pass_on(of_thread);
  return !of_thread->timed_out;
}

int Baton::wake(const void* address, int most) {
  Guard guard(*this);
  candidates_.clear();
  for (auto& thread : threads_) {
    if (thread.state == ScheduledThread::State::waits && thread.waits_for == address && address != nullptr)
      candidates_.push_back(&thread);
  }
  int woken = 0;
  while (woken < most && !candidates_.empty()) {
    const auto which = draw_candidate();
    candidates_[which]->state = ScheduledThread::State::ready;
    candidates_[which]->timed_out = false;
    candidates_.erase(candidates_.begin() + static_cast<std::ptrdiff_t>(which));
    ++woken;
  }
  return woken;
}

ScheduledThread* Baton::start() {
  Guard guard(*this);
  auto& thread = threads_.emplace_back();
  thread.number = static_cast<int>(threads_.size()) - 1;
  return &thread;
}

void Baton::begin(ScheduledThread* thread) {
  of_thread = thread;
  thread->tid = own_tid();
  sleep_until_turn(*thread);
}

void Baton::end() {
  auto* const me = of_thread;
  wake(me);
  ScheduledThread* chosen = nullptr;
  {
    Guard guard(*this);
    me->state = ScheduledThread::State::ended;
    of_thread = nullptr;
    chosen = next();
  }
  give_turn(*chosen);
}

ScheduledThread* Baton::find(pthread_t handle) {
  Guard guard(*this);
  const auto found = std::find_if(threads_.rbegin(), threads_.rend(),
                                  [&](const auto& thread) { return pthread_equal(thread.handle, handle) != 0; });
  return found == threads_.rend() ? nullptr : &*found;
}

bool Baton::governs(pid_t tid) {
  Guard guard(*this);
  return std::any_of(threads_.begin(), threads_.end(), [tid](const auto& thread) {
    return thread.tid == tid && thread.state != ScheduledThread::State::ended;
  });
}

Baton::Time Baton::on(clockid_t clock) noexcept {
  return (is_of_day(clock) ? real_time_base_ : steady_base_) + read_clock();
}

Baton::Time Baton::from(clockid_t clock, const timespec& time) const noexcept {
  const auto at = std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  return at - (is_of_day(clock) ? real_time_base_ : steady_base_);
}

std::size_t Baton::draw_candidate() { return candidates_.size() == 1 ? 0 : draw_() % candidates_.size(); }

// The lock is held. Who has the baton next; time passes where all wait.
ScheduledThread* Baton::next() {
  for (auto stuck_since = Time(0);;) {
    auto first = kNever;
    candidates_.clear();
    for (auto& thread : threads_) {
      if (thread.state == ScheduledThread::State::waits && thread.deadline <= now_) {
        thread.state = ScheduledThread::State::ready;
        thread.timed_out = true;
      }
      if (thread.state == ScheduledThread::State::ready) candidates_.push_back(&thread);
      if (thread.state == ScheduledThread::State::waits) first = std::min(first, thread.deadline);
    }
    if (!candidates_.empty()) break;
    if (first != kNever) {
      now_ = first;
      continue;
    }
    // A thread that is none of ours may wake one.
    if (stuck_since == Time(0)) stuck_since = real_time(CLOCK_MONOTONIC);
    if (real_time(CLOCK_MONOTONIC) - stuck_since > options_.stuck_after) {
      give_up();
    }
    lock_.clear(std::memory_order_release);
    const timespec pause{0, 100'000};
    real::clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, static_cast<timespec*>(nullptr));
    while (lock_.test_and_set(std::memory_order_acquire)) real::sched_yield();
  }
  auto* chosen = candidates_[draw_candidate()];
  note(static_cast<std::uint64_t>(chosen->number));
  return chosen;
}

// The lock is held, and free in between where another thread is chosen: before that thread is woken, since it may run
// at once, on the processor of this one, and take the lock.
void Baton::pass_on(ScheduledThread* from) {
  auto* chosen = next();
  if (chosen == from) return;
  ++switches_;
  lock_.clear(std::memory_order_release);
  give_turn(*chosen);
  sleep_until_turn(*from);
  while (lock_.test_and_set(std::memory_order_acquire)) real::sched_yield();
}

// A handler of SIGABRT calls what it likes, and the threads that are left wait as ever.
void Baton::give_up() {
  say_stuck();
  of_process.store(nullptr, std::memory_order_release);
  of_thread = nullptr;
  lock_.clear(std::memory_order_release);
  std::abort();
}

void Baton::say_stuck() {
  std::fprintf(stderr, "troupe::testing: no thread can go on, and none has a deadline:\n");
  for (const auto& thread : threads_) {
    if (thread.state != ScheduledThread::State::ended)
      std::fprintf(stderr, "  thread %d: %s %p\n", thread.number, thread.call, thread.waits_for);
  }
}

}  // namespace troupe::testing
