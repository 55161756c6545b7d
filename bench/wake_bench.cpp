// What the messages of a training step cost at the least: three times a thread wakes another one (a bucket is ready),
// and once it is woken itself (the step's buckets are reduced).
//
//   build/release/bench/bench_wake
//
// prints a JSON line for a bare futex, and one for CAF's mailboxes in the same places. Two processes, each on a core of
// its own with its two threads, as the ranks of bench_steps are. Before each wake-up the sender walks through more
// memory than a core's cache holds, as backward does: the kernel's code and data, and the other thread's, are then as
// cold as in a step. Warm, a wake-up is several times cheaper, and says nothing about training.
#include <caf/all.hpp>

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace std::chrono_literals;

constexpr int kRanks = 2;
constexpr int kSteps = 200;
constexpr int kBuckets = 3;
constexpr auto kBetween = 5ms;   // backward between two buckets
constexpr auto kReducing = 1ms;  // the last one's all-reduce, which first waits as long for the other rank
constexpr std::size_t kWalked = std::size_t{48} << 20;

std::int64_t read_clock(clockid_t clock) {
  timespec at{};
  clock_gettime(clock, &at);
  return at.tv_sec * 1'000'000'000LL + at.tv_nsec;
}
std::int64_t now_ns() { return read_clock(CLOCK_MONOTONIC); }
std::int64_t cpu_ns() { return read_clock(CLOCK_THREAD_CPUTIME_ID); }

void walk(std::chrono::nanoseconds time) {
  static std::vector<char> memory(kWalked);
  const auto until = now_ns() + time.count();
  for (std::size_t at = 0; now_ns() < until;) {
    for (int line = 0; line < 1'024; ++line, at = (at + 64) % memory.size()) ++memory[at];
  }
}

/// One way to hand work to another thread and to hear that it is done.
struct Way {
  std::function<void()> send;                  ///< a bucket
  std::function<std::int64_t()> await_answer;  ///< until the last bucket of the step is done; when that was
};

void reduce() {
  std::this_thread::sleep_for(kReducing);
  walk(kReducing);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void measure(const char* name, const Way& way, bool tells) {
  std::vector<double> sent, answered;
  const auto empty = [] {  // two readings of the clock
    const auto before = cpu_ns();
    return cpu_ns() - before;
  };
  for (int step = 0; step < kSteps; ++step) {
    std::int64_t sending = 0;
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      walk(kBetween);
      const auto before = cpu_ns();
      way.send();
      sending += cpu_ns() - before - empty();
    }
    const auto waiting = now_ns();
    const auto finished = way.await_answer();
    sent.push_back(static_cast<double>(sending) / 1e3);
    answered.push_back(static_cast<double>(now_ns() - std::max(finished, waiting)) / 1e3);
  }
  if (tells)
    std::printf(R"({"way": "%s", "sends_us": %.1f, "answer_us": %.1f, "step_us": %.1f})"
                "\n",
                name, median(sent), median(answered), median(sent) + median(answered));
}

void wait_while(std::atomic<int>& word, int value) {
  while (word.load(std::memory_order_acquire) == value)
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void raise_and_wake(std::atomic<int>& word) {
  word.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

void by_futex(bool tells) {
  std::atomic<int> buckets{0}, answers{0};
  std::int64_t finished = 0;
  std::thread reducer([&] {
    for (int bucket = 0; bucket < kSteps * kBuckets; ++bucket) {
      wait_while(buckets, bucket);
      if (bucket % kBuckets != kBuckets - 1) continue;
      reduce();
      finished = now_ns();
      raise_and_wake(answers);
    }
  });
  int step = 0;
  measure("futex",
          {[&] { raise_and_wake(buckets); },
           [&] {
             wait_while(answers, step++);
             return finished;
           }},
          tells);
  reducer.join();
}

void by_caf(bool tells) {
  caf::actor_system_config config;
  config.set("scheduler.max-threads", std::size_t{1});
  caf::actor_system system(config);
  caf::scoped_actor compute(system);
  const auto reducer = system.spawn<caf::detached>(
      [](caf::event_based_actor*, const caf::actor& answer_to) -> caf::behavior {
        return {[answer_to](int bucket) {
          if (bucket != kBuckets - 1) return;
          reduce();
          caf::anon_send(answer_to, now_ns());
        }};
      },
      caf::actor(compute));
  int bucket = 0;
  measure("caf",
          {[&] { caf::anon_send(reducer, bucket++ % kBuckets); },
           [&] {
             std::int64_t finished = 0;
             compute->receive([&](std::int64_t at) { finished = at; }, caf::after(10s) >> [] { std::abort(); });
             return finished;
           }},
          tells);
  caf::anon_send_exit(reducer, caf::exit_reason::kill);
}

int run_rank(int rank) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<std::size_t>(rank), &cores);
  if (sched_setaffinity(0, sizeof(cores), &cores) != 0) {
    std::fprintf(stderr, "bench_wake: this process may not use core %d; it needs %d\n", rank, kRanks);
    return 1;
  }
  by_futex(rank == 0);
  by_caf(rank == 0);
  return 0;
}

}  // namespace

int main() {
  const auto other = fork();
  if (other < 0) {
    std::perror("bench_wake: fork");
    return 1;
  }
  const int own = run_rank(other == 0 ? 1 : 0);
  if (other == 0) _exit(own);
  std::fflush(stdout);
  int status = 0;
  if (waitpid(other, &status, 0) != other || status != 0) return 1;
  return own;
}
