// The strategies that ship, and that of an example, under drawn faults. ./dev explore makes more runs of each.
#include <cstdlib>

#include "examples/custom_strategy/gossip.hpp"
#include "launch/testing/cluster.hpp"
#include "tests/catch.hpp"
#include "tests/launch/testing/points.hpp"

using namespace troupe::testing;

namespace {

int runs_of_each() {
  const char* given = std::getenv("EXPLORE_RUNS");
  return given == nullptr ? 6 : std::atoi(given);
}

std::uint64_t first_seed() {
  const char* given = std::getenv("EXPLORE_FIRST");
  return given == nullptr ? 1 : std::strtoull(given, nullptr, 10);
}

// Half of the runs with a rank on each of three hosts, half with two ranks on each of two.
void explores(const Settings& settings, std::string (*judge)(const TrainedRun&, const TrainedRun&)) {
  for (const int ranks : {1, 2}) {
    const ClusterOptions options{.hosts = 4 - ranks, .ranks_per_host = ranks, .seed = first_seed()};
    const int runs = runs_of_each() / 2;
    const auto found = Cluster(options).explore(points(), {.runs = runs, .settings = settings, .judge = judge});
    INFO(found.test);
    CHECK(found.wrong.empty());
    CHECK(found.runs == runs);
  }
}

Settings settings_of(const std::string& strategy, std::map<std::string, std::string> more = {}) {
  return {.max_steps = 12, .epochs = 4, .batch_size = 24, .strategy = strategy, .more = std::move(more)};
}

}  // namespace

TEST_CASE("[U01] explore: ddp") { explores(settings_of("ddp"), same_weights); }

TEST_CASE("[U01] explore: fsdp") { explores(settings_of("fsdp", {{"snapshot_every", "3"}}), same_weights); }

TEST_CASE("[U01] explore: diloco") { explores(settings_of("diloco", {{"sync_every", "3"}}), same_steps); }

TEST_CASE("[U01] explore: local_sgd") { explores(settings_of("local_sgd", {{"sync_every", "3"}}), same_steps); }

TEST_CASE("[U01] explore: gossip of the example") {
  register_gossip();
  explores(settings_of("gossip"), same_steps);
}
