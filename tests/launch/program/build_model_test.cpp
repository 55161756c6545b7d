#include <atomic>
#include <mutex>
#include <thread>

#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"

using namespace troupe;

TEST_CASE("[L06] simulated ranks that let distribute build their model build one after the other, each from the seed") {
  constexpr int kRanks = 4;
  Config config;
  config.seed = 5;
  const auto expected = [&] {
    const auto building = seed_model(config.seed);
    return torch::nn::Linear(7, 5)->weight.detach().clone();
  }();
  std::atomic<int> inside = 0, built_alone = 0;
  std::mutex mutex;
  int equal = 0;
  const auto errors = testing::run_program(kRanks, config, [&](Rank& rank) {
    torch::nn::Linear built = nullptr;
    const auto model = rank.distribute([&] {
      const bool alone = inside++ == 0;
      std::this_thread::yield();
      built = torch::nn::Linear(7, 5);
      if (--inside == 0 && alone) ++built_alone;
      std::lock_guard lock(mutex);
      equal += built->weight.equal(expected) ? 1 : 0;  // before rank 0's values come
      return built;
    });
    CHECK(model.ptr() == built.ptr());
  });
  for (const auto& error : errors) CHECK(error.empty());
  CHECK(built_alone == kRanks);
  CHECK(equal == kRanks);
}
