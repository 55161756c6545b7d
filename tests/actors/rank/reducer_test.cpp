#include "actors/rank/reducer.hpp"

#include <ATen/ATen.h>

#include "tests/catch.hpp"

using namespace troupe;

namespace {

/// Counts, and takes part in nothing.
class CountingHook final : public CommHook {
 public:
  void reduce(BucketView&, Communicator&) override { ++reduced; }
  void give_up() noexcept override { ++given_up; }
  std::atomic<int> reduced = 0, given_up = 0;
};

class FailingWatch final : public FaultWatch {
 public:
  void at(const char* place, std::int64_t) override {
    if (place == std::string("collective")) throw Error(ErrorCode::aborted, "the test", "it was told to fail");
  }
};

}  // namespace

TEST_CASE("[L05] a reducer that fails outside of its hook frees who waits for what the hook would do") {
  caf::actor_system_config config;
  caf::actor_system system(config);
  caf::scoped_actor compute(system);
  CommunicatorOptions alone;
  ReducerOptions options;
  options.communicator = make_communicator(alone);
  options.compute = caf::actor(compute);
  options.progress = std::make_shared<StepProgress>();
  options.watch = std::make_shared<FailingWatch>();
  const auto reducing = system.spawn<caf::detached>(reducer, options);
  const auto hook = std::make_shared<CountingHook>();
  caf::anon_send(reducing, InstallPlan{std::make_shared<std::vector<BucketView>>(1), hook});
  caf::anon_send(reducing, BucketReady{3, 0, 0});
  ErrorReport failed{ErrorCode::ok, -1, {}, -1, {}, {}, {}};
  compute->receive([&](const CommunicatorFailed& message) { failed = message.report; },
                   caf::after(std::chrono::seconds(30)) >> [] {});
  CHECK(failed.cause == "it was told to fail");
  CHECK(failed.step == 3);
  CHECK(hook->reduced == 0);
  CHECK(hook->given_up == 1);
  caf::anon_send_exit(reducing, caf::exit_reason::user_shutdown);
}

TEST_CASE("[L05] a reducer says how many bytes a step's buckets had") {
  caf::actor_system_config config;
  caf::actor_system system(config);
  caf::scoped_actor compute(system);
  ReducerOptions options;
  options.communicator = make_communicator(CommunicatorOptions{});
  options.compute = caf::actor(compute);
  options.progress = std::make_shared<StepProgress>();
  const auto reducing = system.spawn<caf::detached>(reducer, options);
  auto buckets = std::make_shared<std::vector<BucketView>>(2);
  buckets->front().flat = at::zeros({5}, at::kFloat);
  buckets->back().flat = at::zeros({3}, at::kDouble);
  caf::anon_send(reducing, InstallPlan{buckets, std::make_shared<CountingHook>()});
  for (std::int32_t bucket = 0; bucket < 2; ++bucket) caf::anon_send(reducing, BucketReady{0, bucket, 0});
  BucketsReduced reduced;
  compute->receive([&](const BucketsReduced& message) { reduced = message; },
                   caf::after(std::chrono::seconds(30)) >> [] { FAIL("no word from the reducer"); });
  CHECK(reduced.bytes == 5 * 4 + 3 * 8);
  caf::anon_send_exit(reducing, caf::exit_reason::user_shutdown);
}
