#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace troupe::testing {

/// The seed and the limits of a ThreadSchedule.
struct ThreadScheduleOptions {
  std::uint64_t seed = 0;
  /// Of the calls that may hand on without need (a free lock, a signal): the share at which they do.
  double hands_on = 0.1;
  /// In real time, without any thread that can go on. Then the process is ended, with each thread's wait.
  std::chrono::seconds stuck_after{30};
};

/// Runs the threads of this process one at a time, in an order that the seed decides. Its clock stands still while one
/// runs and jumps to the next deadline while all wait. So a seed gives the same run each time, and waits cost nothing.
/// From its construction until its destruction it governs the calling thread and all threads that it and they start,
/// and keeps them on one processor.
///
/// The problem: the order in which threads come to locks, messages and collectives is chance, so that a failure in one
/// of a thousand orders can't be seen again. The solution: a baton. This library defines the calls by which threads
/// wait for each other (pthread mutexes, condition variables, read-write locks, semaphores, joins; futex, sleep, yield,
/// poll; the clocks). They replace the C library's, and pass the baton on. Without a schedule they cost a test and a
/// jump. (Systematic testing by a scheduler that replaces the operating system's: Musuvathi et al., "Finding and
/// Reproducing Heisenbugs in Concurrent Programs", OSDI 2008.)
///
/// One at a time in a process. Earlier threads go on beside it. Not under a sanitizer that replaces the same calls.
/// Main thread.
class ThreadSchedule {
 public:
  explicit ThreadSchedule(const ThreadScheduleOptions& options = {});
  /// All threads that were started under it must have ended.
  ~ThreadSchedule();
  ThreadSchedule(const ThreadSchedule&) = delete;
  ThreadSchedule& operator=(const ThreadSchedule&) = delete;

  /// Of the order so far: in two runs with the same one, the same threads did the same calls in the same order.
  std::uint64_t fingerprint() const;
  /// The number of times that one thread has handed on to another.
  std::uint64_t switches() const;
  std::chrono::nanoseconds now() const;  ///< since its construction
};

}  // namespace troupe::testing
