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

void explores(const ClusterOptions& options, const Settings& settings,
              std::string (*judge)(const TrainedRun&, const TrainedRun&)) {
  auto seeded = options;
  seeded.seed = first_seed();
  const auto found = Cluster(seeded).explore(points(), {.runs = runs_of_each(), .settings = settings, .judge = judge});
  INFO(found.test);
  CHECK(found.wrong.empty());
  CHECK(found.runs == runs_of_each());
}

Settings settings_of(const std::string& strategy, std::map<std::string, std::string> more = {}) {
  return {.max_steps = 12, .epochs = 4, .batch_size = 24, .strategy = strategy, .more = std::move(more)};
}

}  // namespace

TEST_CASE("[U01] explore: ddp") { explores({.hosts = 3, .ranks_per_host = 1}, settings_of("ddp"), same_weights); }

TEST_CASE("[U01] explore: fsdp") {
  explores({.hosts = 3, .ranks_per_host = 1}, settings_of("fsdp", {{"snapshot_every", "3"}}), same_weights);
}

TEST_CASE("[U01] explore: diloco") {
  explores({.hosts = 3, .ranks_per_host = 1}, settings_of("diloco", {{"sync_every", "3"}}), same_steps);
}

TEST_CASE("[U01] explore: local_sgd") {
  explores({.hosts = 3, .ranks_per_host = 1}, settings_of("local_sgd", {{"sync_every", "3"}}), same_steps);
}

TEST_CASE("[U01] explore: gossip of the example") {
  register_gossip();
  explores({.hosts = 3, .ranks_per_host = 1}, settings_of("gossip"), same_steps);
}
