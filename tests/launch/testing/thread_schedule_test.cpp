#include "launch/testing/thread_schedule.hpp"

#include <pthread.h>
#include <semaphore.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "tests/catch.hpp"

using namespace std::chrono_literals;
using troupe::testing::ThreadSchedule;

namespace {

// Four threads that take turns at a lock, with a sleep in between. Returns the order in which they had it.
std::string order_of(std::uint64_t seed, std::uint64_t* fingerprint = nullptr) {
  ThreadSchedule schedule({.seed = seed});
  std::mutex mutex;
  std::string order;
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {
      for (int i = 0; i < 10; ++i) {
        std::this_thread::sleep_for(1ms);
        std::lock_guard lock(mutex);
        order += static_cast<char>('a' + number);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  if (fingerprint != nullptr) *fingerprint = schedule.fingerprint();
  return order;
}

}  // namespace

TEST_CASE("[U01] a seed gives threads the same order each time, and another seed another one") {
  std::set<std::string> orders;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::uint64_t first = 0, again = 0;
    const auto order = order_of(seed, &first);
    CHECK(order.size() == 40);
    CHECK(order_of(seed, &again) == order);
    CHECK(first == again);
    orders.insert(order);
  }
  CHECK(orders.size() == 20);
}

TEST_CASE("[U01] a wait costs no time, and deadlines come in their order") {
  const auto real_start = std::chrono::steady_clock::now();
  {
    ThreadSchedule schedule;
    const auto start = std::chrono::steady_clock::now();
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<int> ended;
    const auto wait = [&](int hours) {
      std::unique_lock lock(mutex);
      CHECK_FALSE(changed.wait_for(lock, std::chrono::hours(hours), [] { return false; }));
      ended.push_back(hours);
    };
    std::vector<std::thread> threads;
    for (const int hours : {3, 1, 2}) threads.emplace_back(wait, hours);
    std::this_thread::sleep_for(90min);
    {
      std::lock_guard lock(mutex);
      CHECK(ended == std::vector<int>{1});
    }
    for (auto& thread : threads) thread.join();
    CHECK(ended == std::vector<int>{1, 2, 3});
    const auto waited = std::chrono::steady_clock::now() - start;
    CHECK(waited >= 3h);
    CHECK(waited < 3h + 1s);
    const auto day = std::chrono::system_clock::now();
    std::this_thread::sleep_until(day + 24h);
    CHECK(std::chrono::system_clock::now() >= day + 24h);
  }
  CHECK(std::chrono::steady_clock::now() - real_start < 60s);
}

TEST_CASE("[U01] what was signalled before its deadline has not timed out, and one signal wakes one") {
  ThreadSchedule schedule({.seed = 5});
  std::mutex mutex;
  std::condition_variable changed;
  int permits = 0, got = 0, missed = 0;
  const auto take = [&] {
    std::unique_lock lock(mutex);
    if (changed.wait_for(lock, 10s, [&] { return permits > 0; })) {
      --permits;
      ++got;
    } else {
      ++missed;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 5; ++i) threads.emplace_back(take);
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(1s);
    {
      std::lock_guard lock(mutex);
      ++permits;
    }
    changed.notify_one();
  }
  for (auto& thread : threads) thread.join();
  CHECK(got == 3);
  CHECK(missed == 2);
}

TEST_CASE("[U01] an order that one seed in many brings is found and comes again: two threads that add without a lock") {
  // The sum of a seed: both read it, then both write it, where the baton is handed on in between.
  const auto sum_of = [](std::uint64_t seed) {
    ThreadSchedule schedule({.seed = seed});
    int sum = 0;
    const auto add = [&] {
      for (int i = 0; i < 3; ++i) {
        const int seen = sum;
        std::this_thread::yield();
        sum = seen + 1;
      }
    };
    std::thread other(add);
    add();
    other.join();
    return sum;
  };
  std::set<int> sums;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const int sum = sum_of(seed);
    sums.insert(sum);
    for (int again = 0; again < 3; ++again) CHECK(sum_of(seed) == sum);
  }
  CHECK(sums.size() > 1);
}

TEST_CASE(
    "[U01] under a schedule each kind of wait ends: locks for readers, promises, what is made once, atomics, joins") {
  ThreadSchedule schedule({.seed = 3, .hands_on = 0.5});
  std::shared_mutex shared;
  std::once_flag once;
  std::atomic<int> word{0};
  std::atomic<int> made{0}, readers{0};
  std::promise<int> promise;
  auto future = promise.get_future().share();
  struct Slow {
    Slow() { std::this_thread::sleep_for(1s); }
    int value = 7;
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      std::call_once(once, [&] {
        std::this_thread::sleep_for(1s);
        ++made;
      });
      static const Slow slow;
      CHECK(slow.value == 7);
      {
        std::shared_lock lock(shared);
        ++readers;
      }
      {
        std::unique_lock lock(shared);
        std::this_thread::yield();
      }
      if (i == 0) {
        std::this_thread::sleep_for(2s);
        promise.set_value(9);
        word = 1;
        word.notify_all();
      }
      CHECK(future.get() == 9);
      word.wait(0);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(made == 1);
  CHECK(readers == 4);
  std::timed_mutex timed;
  std::lock_guard held(timed);
  std::thread([&] { CHECK_FALSE(timed.try_lock_for(1h)); }).join();
}

TEST_CASE("[U01] a thread of before the schedule may wake one under it, and waits as ever") {
  std::mutex mutex;
  std::condition_variable changed;
  bool go = false, done = false;
  std::thread outside([&] {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return go; });
    done = true;
    changed.notify_all();
  });
  {
    ThreadSchedule schedule;
    std::thread inside([&] {
      std::unique_lock lock(mutex);
      go = true;
      changed.notify_all();
      changed.wait(lock, [&] { return done; });
    });
    inside.join();
    CHECK(done);
  }
  outside.join();
}

TEST_CASE("[U01] no wake-up of a thread of before the schedule is lost, whenever it comes") {
  constexpr int kTimes = 20'000;
  std::mutex mutex;
  sem_t there, back;
  sem_init(&there, 0, 0);
  sem_init(&back, 0, 0);
  int sum = 0;
  const auto add = [&] {
    for (int i = 0; i < kTimes; ++i) {
      std::lock_guard lock(mutex);
      ++sum;
    }
  };
  std::thread outside([&] {
    add();
    for (int i = 0; i < kTimes; ++i) {
      sem_wait(&there);
      sem_post(&back);
    }
  });
  {
    ThreadSchedule schedule({.stuck_after = 5s});
    std::thread inside(add);
    add();
    inside.join();
    for (int i = 0; i < kTimes; ++i) {
      sem_post(&there);
      sem_wait(&back);
    }
  }
  outside.join();
  CHECK(sum == 3 * kTimes);
  sem_destroy(&there);
  sem_destroy(&back);
}
