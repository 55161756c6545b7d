// Every strategy of ours passes the suite that users run on theirs, and the suite sees what is wrong with one that is
// broken.
#include "launch/program/strategy_conformance.hpp"

#include <cstdlib>

#include "examples/custom_strategy/gossip.hpp"
#include "tests/catch.hpp"
#include "tests/share.hpp"

using namespace troupe;

namespace {

// Random ones, of each strategy: enough for every change. `TROUPE_SCHEDULES=100` has as many as a user's suite.
const int kSchedules = [] {
  const char* asked = std::getenv("TROUPE_SCHEDULES");
  return asked == nullptr ? 12 : std::atoi(asked);
}();

ConformanceReport conformance_of(const std::string& strategy, double bound, int schedules,
                                 std::function<void(Config&)> configure = {}, std::vector<int> ranks = {2, 4, 8}) {
  ConformanceOptions options;
  options.strategy = strategy;
  options.loss_bound = bound;
  options.schedules = schedules;
  options.configure = std::move(configure);
  options.ranks = std::move(ranks);
  return strategy_conformance(options);
}

void conforms(const ConformanceReport& report) {
  INFO(report.to_string());
  CHECK(report.passed());
  CHECK(report.deaths >= 10);
  std::printf("%s\n", report.to_string().c_str());
}

// Adds gradients up, and does not divide.
struct SummedGradients : ReplicatedStrategy {
  using ReplicatedStrategy::ReplicatedStrategy;
  void combine_gradients(GradientSummary&) override {
    for (const auto& flat : gradients()) context().program_communicator->all_reduce(flat, ReduceOp::sum, "gradients");
  }
};

// The same, right: the shortest strategy there is.
struct MeanGradients : ReplicatedStrategy {
  using ReplicatedStrategy::ReplicatedStrategy;
  void combine_gradients(GradientSummary&) override {
    for (const auto& flat : gradients()) context().program_communicator->all_reduce(flat, ReduceOp::avg, "gradients");
  }
};

// Swaps parameters with its neighbour after each step, each of the two sending first: a circle.
struct SendsFirst : MeanGradients {
  using MeanGradients::MeanGradients;
  void after_update() override {
    if (step() != 2) return;
    auto& communicator = *context().program_communicator;
    const int other = communicator.rank() ^ 1;
    if (other >= communicator.world_size()) return;
    communicator.send(torch::ones({1}), other, "token");
    communicator.recv(torch::zeros({1}), other, "token");
  }
};

// Counts its lives, and lets a newcomer begin with what it counted itself: state that nobody heals.
struct ForgetsState : MeanGradients {
  using MeanGradients::MeanGradients;
  void combine_gradients(GradientSummary& summary) override {
    MeanGradients::combine_gradients(summary);
    ++seen_;
    for (const auto& flat : gradients()) flat.mul_(1 + 1e-3 * seen_);
  }
  int seen_ = 0;
};

template <class Kind>
void register_kind(const std::string& name) {
  register_strategy(name, "for a test",
                    [](StrategyContext context) { return std::make_unique<Kind>(std::move(context)); });
}

}  // namespace

TEST_CASE("[X01] ddp, zero1, zero2 and fsdp pass the conformance suite") {
  const std::string strategy = GENERATE("ddp", "zero1", "zero2", "fsdp");
  if (!testing::in_share(0.4, strategy)) return;
  conforms(conformance_of(strategy, 1e-4, kSchedules));
}

TEST_CASE("[D10] ddp with bf16 on the wire outlives its ranks") {
  conforms(conformance_of("ddp", 0.05, 0, [](Config& config) { config.comm_hook = "bf16"; }));
}

TEST_CASE("[D16] ddp that updates early outlives its ranks") {
  conforms(conformance_of("ddp", 1e-4, kSchedules, [](Config& config) { config.early_update = true; }));
}

TEST_CASE("[X01] a strategy that averages gradients in one line passes the conformance suite") {
  register_kind<MeanGradients>("mean_gradients");
  conforms(conformance_of("mean_gradients", 1e-4, kSchedules));
}

TEST_CASE("[X01] gossip, with an actor of its own, passes the conformance suite", "[share]") {
  register_gossip();
  conforms(conformance_of("gossip", 0.1, kSchedules));
}

TEST_CASE("[X05] local_sgd and diloco pass the conformance suite", "[share]") {
  SECTION("local_sgd") {
    conforms(conformance_of("local_sgd", 0.1, kSchedules, [](Config& config) { config.sync_every = 4; }));
  }
  SECTION("diloco") {
    conforms(conformance_of("diloco", 0.2, kSchedules, [](Config& config) {
      config.sync_every = 4;
      config.outer_momentum = 0.5;  // 16 outer steps are few
    }));
  }
  SECTION("diloco by fragments, overlapped") {
    conforms(conformance_of("diloco", 0.3, kSchedules, [](Config& config) {
      config.sync_every = 4;
      config.outer_momentum = 0.5;
      config.diloco_fragments = 2;
      config.diloco_overlap = 1;
    }));
  }
  SECTION("diloco with bf16 on the wire") {
    conforms(conformance_of("diloco", 0.2, 0, [](Config& config) {
      config.sync_every = 4;
      config.outer_momentum = 0.5;
      config.comm_hook = "bf16";
    }));
  }
}

// A step makes as many updates as it lets a gradient be behind, and one more. Which update a gradient goes into depends
// on who is first.
TEST_CASE("[X05] parameter_server passes the conformance suite") {
  ConformanceOptions options;
  options.strategy = "parameter_server";
  options.loss_bound = 0.05;
  options.same_bits = false;
  options.schedules = kSchedules;
  options.configure = [](Config& config) {
    config.staleness = 1;
    if (config.strategy == "parameter_server") config.lr = 0.05;  // for twice as many updates as ddp makes
  };
  conforms(strategy_conformance(options));
}

TEST_CASE("[X01] the conformance suite names a strategy that does not converge like one rank") {
  register_kind<SummedGradients>("summed_gradients");
  const auto report = conformance_of("summed_gradients", 1e-4, 0);
  REQUIRE(!report.passed());
  CHECK(report.failures.front().find("one rank's at") != std::string::npos);
}

TEST_CASE("[X01] the conformance suite names a strategy whose ranks wait for each other in a circle", "[share]") {
  register_kind<SendsFirst>("sends_first");
  const auto report = conformance_of("sends_first", 1e-4, 1, [](Config& config) { config.collective_timeout = 0.5; });
  REQUIRE(!report.passed());
  CHECK(report.to_string().find("a deadline ended a wait") != std::string::npos);
}

TEST_CASE("[X01] the conformance suite names a strategy that loses its state with a rank") {
  register_kind<ForgetsState>("forgets_state");
  const auto report = conformance_of("forgets_state", 10, 0);
  REQUIRE(!report.passed());
  CHECK(report.to_string().find("not that of the undisturbed job, bit for bit") != std::string::npos);
}

TEST_CASE("[X01] gossip meets another rank each time and keeps the ranks' mean") {
  for (const int world_size : {2, 3, 4, 7, 8}) {
    for (std::int64_t step = 0; step < 4; ++step) {
      int alone = 0;
      for (int rank = 0; rank < world_size; ++rank) {
        const int partner = gossip_partner(rank, world_size, step);
        CHECK(gossip_partner(partner, world_size, step) == rank);
        alone += partner == rank ? 1 : 0;
      }
      CHECK(alone == world_size % 2);
    }
  }
}
