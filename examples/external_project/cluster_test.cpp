// The model under faults, with GoogleTest: a cluster of ranks in the test's process. And an actor by itself.
//
// expect: passed, in a second.
#include <gtest/gtest.h>
#include <troupe/testing.hpp>

#include "late_average.hpp"
#include "wave.hpp"

namespace {

using namespace troupe::testing;

const troupe::Job kJob = job(128);
const Settings kSettings{.max_steps = 10, .epochs = 4, .batch_size = 32};

}  // namespace

TEST(Cluster, TheLossFalls) {
  const auto run = Cluster({.hosts = 1, .ranks_per_host = 2}).train(kJob, kSettings);
  ASSERT_EQ(run.exit_code(), 0) << run.error();
  EXPECT_LT(run.losses().at(10), run.losses().at(1));
}

TEST(Cluster, ARankThatDiesChangesNoBit) {
  Cluster cluster({.hosts = 2, .ranks_per_host = 2});
  cluster.kill(Rank{1}, At{"vote", 7});
  const auto run = cluster.train(kJob, kSettings);
  ASSERT_EQ(run.exit_code(), 0) << run.error();
  EXPECT_EQ(run.weights().difference(cluster.undisturbed(kJob, kSettings).weights()), "");
}

TEST(Cluster, AShortCutOfTheNetworkChangesNoBit) {
  using namespace std::chrono_literals;
  Cluster cluster({.hosts = 2, .ranks_per_host = 2});
  cluster.cut(Host{0}, Host{1}, At{"collective", 7}, 2s);
  const auto run = cluster.train(kJob, kSettings);
  ASSERT_EQ(run.exit_code(), 0) << run.error();
  EXPECT_GT(run.time(), 2s);
  EXPECT_EQ(run.weights().difference(cluster.undisturbed(kJob, kSettings).weights()), "");
}

TEST(Actor, AveragesInPlace) {
  ActorAlone<AverageActor> alone(average_behavior);
  const auto copy = torch::tensor({1.0F, 2.0F});
  (void)alone.ask(Average{troupe::make_communicator({.name = "one rank"}), copy});
  EXPECT_TRUE(at::equal(copy, torch::tensor({1.0F, 2.0F})));
  EXPECT_TRUE(alone.sent().empty());
}
