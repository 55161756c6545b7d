// In the places of the C library's calls by which threads wait for each other. Each does what the C library's does;
// under a ThreadSchedule a wait hands the baton on, and nothing waits in the kernel but for the baton.
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdint>
#include <limits>
#include <memory>

#include "launch/testing/baton.hpp"
#include "launch/testing/real_calls.hpp"

using troupe::testing::Baton;
using troupe::testing::ScheduledThread;
namespace real = troupe::testing::real;

namespace {

using Time = Baton::Time;

Time duration(const timespec& time) {
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

timespec timespec_of(Time time) {
  return {static_cast<time_t>(time.count() / 1'000'000'000), static_cast<long>(time.count() % 1'000'000'000)};
}

// Which clock an absolute time is of: a condition variable keeps it to itself.
clockid_t clock_of(const timespec& time) { return time.tv_sec > 1'000'000'000 ? CLOCK_REALTIME : CLOCK_MONOTONIC; }

// Waits until `attempt` succeeds. False: the deadline is there. A thread that the schedule does not govern may change
// what it tries between the attempt and the wait, so that it is tried once more by one that counts as waiting.
template <class Attempt>
bool until(Baton& baton, const void* address, const char* call, Time deadline, Attempt attempt) {
  bool done = attempt();
  while (!done) {
    if (deadline <= baton.now()) return false;
    baton.wait(address, call, deadline, [&] {
      done = attempt();
      if (done) baton.stop_waiting();
    });
    done = done || attempt();
  }
  return true;
}

// What `try_lock` returns, which is EBUSY as long as it would wait; ETIMEDOUT.
template <class TryLock>
int until_free(Baton& baton, const void* address, const char* call, Time deadline, TryLock try_lock) {
  int result = EBUSY;
  const bool free = until(baton, address, call, deadline, [&] { return (result = try_lock()) != EBUSY; });
  return free ? result : ETIMEDOUT;
}

// A thread that the schedule does not govern needs no baton to give a mutex back, and may do so within the C library,
// in a wait for a condition, which nothing here sees: that is waited for in the kernel.
int lock(Baton& baton, pthread_mutex_t* mutex, Time deadline = Baton::kNever) {
  return until_free(baton, mutex, "mutex", deadline, [&] {
    const int result = real::trylock(mutex);
    return result == EBUSY && !baton.governs(mutex->__data.__owner) ? real::lock(mutex) : result;
  });
}

int wait_for_condition(Baton& baton, pthread_cond_t* condition, pthread_mutex_t* mutex, Time deadline) {
  const bool woken = baton.wait(condition, "condition", deadline, [&] {
    real::unlock(mutex);
    baton.wake(mutex);
  });
  if (const int failure = lock(baton, mutex); failure != 0) return failure;
  return woken ? 0 : ETIMEDOUT;
}

// A futex of memory that is mapped several times has another address in each mapping, and the same place in its page.
// Waiters of another one at that place are woken too, and look again.
const void* shared_address(const void* word) {
  constexpr std::uintptr_t kPage = 4096;
  return reinterpret_cast<const void*>(1 + reinterpret_cast<std::uintptr_t>(word) % kPage);  // none that is mapped
}

int wait_for_semaphore(Baton& baton, sem_t* semaphore, Time deadline) {
  baton.may_hand_on();
  int result = 0;
  const bool ended = until(baton, semaphore, "semaphore", deadline, [&] {
    result = real::sem_trywait(semaphore);
    return result == 0 || errno != EAGAIN;
  });
  if (ended) return result;
  errno = ETIMEDOUT;
  return -1;
}

int sleep_for(Baton& baton, Time time) {
  baton.wait(nullptr, "sleep", baton.now() + time);
  return 0;
}

// Not under another thread's making of the same thing.
void until_made(Baton& baton, const void* address) {
  while (baton.being_made.contains(address)) baton.wait(address, "initialisation");
}

struct Beginning {
  Baton* baton;
  ScheduledThread* thread;
  void* (*function)(void*);
  void* argument;
};

// The thread ends after the destructors of its thread_local objects, and of its other keys as far as these have two
// rounds.
struct Ending {
  pthread_key_t key{};
  Ending() { pthread_key_create(&key, end); }
  static void end(void* round);
};
Ending ending;

void Ending::end(void* round) {
  const auto rounds = reinterpret_cast<std::uintptr_t>(round);
  if (rounds > 1) {
    pthread_setspecific(ending.key, reinterpret_cast<void*>(rounds - 1));
  } else if (Baton* baton = Baton::mine()) {
    baton->end();
  }
}

void* begin_thread(void* given) {
  const std::unique_ptr<Beginning> beginning(static_cast<Beginning*>(given));
  beginning->baton->begin(beginning->thread);
  pthread_setspecific(ending.key, reinterpret_cast<void*>(3));
  return beginning->function(beginning->argument);
}

}  // namespace

bool troupe::testing::calls_hand_on() noexcept { return true; }

extern "C" {

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*function)(void*), void* argument) {
  Baton* const baton = Baton::mine();
  if (baton == nullptr) return real::create(thread, attributes, function, argument);
  auto* const started = baton->start();
  auto beginning = std::make_unique<Beginning>(Beginning{baton, started, function, argument});
  const int result = real::create(thread, attributes, begin_thread, static_cast<void*>(beginning.get()));
  if (result != 0) {
    started->state = ScheduledThread::State::ended;
    return result;
  }
  (void)beginning.release();
  started->handle = *thread;
  baton->may_hand_on();
  return 0;
}

int pthread_join(pthread_t thread, void** result) {
  if (Baton* const baton = Baton::mine()) {
    const auto* const other = baton->find(thread);
    while (other != nullptr && other->state != ScheduledThread::State::ended) baton->wait(other, "join");
  }
  return real::join(thread, result);
}

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  Baton* const baton = Baton::mine();
  if (baton == nullptr) return real::lock(mutex);
  baton->may_hand_on();
  return lock(*baton, mutex);
}

int pthread_mutex_timedlock(pthread_mutex_t* mutex, const timespec* time) noexcept {
  Baton* const baton = Baton::mine();
  if (baton == nullptr) return real::timedlock(mutex, time);
  baton->may_hand_on();
  return lock(*baton, mutex, baton->from(CLOCK_REALTIME, *time));
}

int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock, const timespec* time) noexcept {
  Baton* const baton = Baton::mine();
  if (baton == nullptr) return real::clocklock(mutex, clock, time);
  baton->may_hand_on();
  return lock(*baton, mutex, baton->from(clock, *time));
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  const int result = real::unlock(mutex);
  if (Baton* const baton = Baton::any()) baton->wake(mutex);
  return result;
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  Baton* const baton = Baton::mine();
  return baton == nullptr ? real::cond_wait(condition, mutex)
                          : wait_for_condition(*baton, condition, mutex, Baton::kNever);
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* time) {
  Baton* const baton = Baton::mine();
  return baton == nullptr ? real::cond_timedwait(condition, mutex, time)
                          : wait_for_condition(*baton, condition, mutex, baton->from(clock_of(*time), *time));
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* time) {
  Baton* const baton = Baton::mine();
  return baton == nullptr ? real::cond_clockwait(condition, mutex, clock, time)
                          : wait_for_condition(*baton, condition, mutex, baton->from(clock, *time));
}

int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  if (Baton* const baton = Baton::any()) baton->wake(condition, 1);
  return real::cond_signal(condition);
}

int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  if (Baton* const baton = Baton::any()) baton->wake(condition);
  return real::cond_broadcast(condition);
}

int pthread_rwlock_rdlock(pthread_rwlock_t* lock) noexcept {
  Baton* const baton = Baton::mine();
  if (baton == nullptr) return real::rdlock(lock);
  baton->may_hand_on();
  return until_free(*baton, lock, "read-write lock", Baton::kNever, [&] { return real::tryrdlock(lock); });
}

int pthread_rwlock_wrlock(pthread_rwlock_t* lock) noexcept {
  Baton* const baton = Baton::mine();
  if (baton == nullptr) return real::wrlock(lock);
  baton->may_hand_on();
  return until_free(*baton, lock, "read-write lock", Baton::kNever, [&] { return real::trywrlock(lock); });
}

int pthread_rwlock_unlock(pthread_rwlock_t* lock) noexcept {
  const int result = real::rwunlock(lock);
  if (Baton* const baton = Baton::any()) baton->wake(lock);
  return result;
}

int pthread_once(pthread_once_t* control, void (*function)()) {
  Baton* const baton = Baton::mine();
  if (baton == nullptr) return real::once(control, function);
  until_made(*baton, control);
  baton->being_made.insert(control);
  struct Made {
    ~Made() {
      baton.being_made.erase(control);
      baton.wake(control);
    }
    Baton& baton;
    pthread_once_t* control;
  } made{*baton, control};
  return real::once(control, function);
}

// So the C++ runtime calls the next three.
// NOLINTNEXTLINE(readability-identifier-naming,bugprone-reserved-identifier)
int __cxa_guard_acquire(std::int64_t* guard) {
  Baton* const baton = Baton::mine();
  if (baton == nullptr) return real::guard_acquire(guard);
  until_made(*baton, guard);
  const int begins = real::guard_acquire(guard);
  if (begins != 0) baton->being_made.insert(guard);
  return begins;
}

// NOLINTNEXTLINE(readability-identifier-naming,bugprone-reserved-identifier)
void __cxa_guard_release(std::int64_t* guard) noexcept {
  real::guard_release(guard);
  if (Baton* const baton = Baton::mine(); baton != nullptr && baton->being_made.erase(guard) > 0) baton->wake(guard);
}

// NOLINTNEXTLINE(readability-identifier-naming,bugprone-reserved-identifier)
void __cxa_guard_abort(std::int64_t* guard) noexcept {
  real::guard_abort(guard);
  if (Baton* const baton = Baton::mine(); baton != nullptr && baton->being_made.erase(guard) > 0) baton->wake(guard);
}

int sem_wait(sem_t* semaphore) {
  Baton* const baton = Baton::mine();
  return baton == nullptr ? real::sem_wait(semaphore) : wait_for_semaphore(*baton, semaphore, Baton::kNever);
}

int sem_timedwait(sem_t* semaphore, const timespec* time) {
  Baton* const baton = Baton::mine();
  return baton == nullptr ? real::sem_timedwait(semaphore, time)
                          : wait_for_semaphore(*baton, semaphore, baton->from(CLOCK_REALTIME, *time));
}

int sem_clockwait(sem_t* semaphore, clockid_t clock, const timespec* time) {
  Baton* const baton = Baton::mine();
  return baton == nullptr ? real::sem_clockwait(semaphore, clock, time)
                          : wait_for_semaphore(*baton, semaphore, baton->from(clock, *time));
}

int sem_post(sem_t* semaphore) noexcept {
  const int result = real::sem_post(semaphore);
  if (Baton* const baton = Baton::any()) baton->wake(semaphore);
  return result;
}

long syscall(long number, ...) noexcept {
  long given[6];
  std::va_list list;
  va_start(list, number);
  for (long& argument : given) argument = va_arg(list, long);
  va_end(list);
  const auto pass = [&] { return real::syscall(number, given[0], given[1], given[2], given[3], given[4], given[5]); };
  if (number != SYS_futex) return pass();
  const auto* const word = reinterpret_cast<const std::atomic<std::uint32_t>*>(given[0]);
  const auto operation = given[1] & ~(FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME);
  const bool shared = (given[1] & FUTEX_PRIVATE_FLAG) == 0;
  const auto* const address = shared ? shared_address(word) : word;
  if (operation == FUTEX_WAKE) {
    Baton* const baton = Baton::any();
    const int most = shared ? std::numeric_limits<int>::max() : static_cast<int>(given[2]);
    const int woken = baton == nullptr ? 0 : baton->wake(address, most);
    return pass() + woken;
  }
  Baton* const baton = Baton::mine();
  if (baton == nullptr || (operation != FUTEX_WAIT && operation != FUTEX_WAIT_BITSET)) return pass();
  baton->may_hand_on();
  const auto is_other = [&] { return word->load() != static_cast<std::uint32_t>(given[2]); };
  if (is_other()) {
    errno = EAGAIN;
    return -1;
  }
  auto deadline = Baton::kNever;
  if (const auto* time = reinterpret_cast<const timespec*>(given[3]); time != nullptr) {
    deadline = operation == FUTEX_WAIT
                   ? baton->now() + duration(*time)
                   : baton->from((given[1] & FUTEX_CLOCK_REALTIME) != 0 ? CLOCK_REALTIME : CLOCK_MONOTONIC, *time);
  }
  const bool woken = baton->wait(address, "futex", deadline, [&] {
    if (is_other()) baton->stop_waiting();
  });
  if (woken) return 0;
  errno = ETIMEDOUT;
  return -1;
}

int sched_yield() noexcept {
  Baton* const baton = Baton::mine();
  if (baton == nullptr) return real::sched_yield();
  baton->yield();
  return 0;
}

int clock_nanosleep(clockid_t clock, int flags, const timespec* time, timespec* left) {
  Baton* const baton = Baton::mine();
  if (baton == nullptr) return real::clock_nanosleep(clock, flags, time, left);
  const auto until = flags == TIMER_ABSTIME ? baton->from(clock, *time) : baton->now() + duration(*time);
  return sleep_for(*baton, until - baton->now());
}

int nanosleep(const timespec* time, timespec* left) {
  const int failure = clock_nanosleep(CLOCK_MONOTONIC, 0, time, left);
  if (failure != 0) errno = failure;
  return failure == 0 ? 0 : -1;
}

int usleep(useconds_t time) {
  const auto pause = timespec_of(std::chrono::microseconds(time));
  return nanosleep(&pause, nullptr);
}

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  Baton* const baton = Baton::mine();
  if (baton == nullptr || clock == CLOCK_PROCESS_CPUTIME_ID || clock == CLOCK_THREAD_CPUTIME_ID)
    return real::clock_gettime(clock, time);
  *time = timespec_of(baton->on(clock));
  return 0;
}

int gettimeofday(timeval* time, void*) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  *time = {now.tv_sec, now.tv_nsec / 1000};
  return 0;
}

time_t time(time_t* out) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != nullptr) *out = now.tv_sec;
  return now.tv_sec;
}

// What others write does not wake it: it looks again each millisecond of the schedule's time.
int poll(pollfd* fds, nfds_t n, int timeout) {
  Baton* const baton = Baton::mine();
  if (baton == nullptr) return real::poll(fds, n, timeout);
  const auto deadline = timeout < 0 ? Baton::kNever : baton->now() + std::chrono::milliseconds(timeout);
  while (true) {
    if (const int ready = real::poll(fds, n, 0); ready != 0) return ready;
    if (baton->now() >= deadline) return 0;
    baton->wait(nullptr, "poll", std::min(deadline, baton->now() + std::chrono::milliseconds(1)));
  }
}

}  // extern "C"
