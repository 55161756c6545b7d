// OwnFigures: what a strategy says of itself in the records.
#include "actors/strategy/own_figures.hpp"

#include <map>

#include "launch/loop/rank_system.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/small_training.hpp"

using namespace troupe;
using testing::SmallTraining;

namespace {

using Figures = std::map<std::string, double>;

Figures figures_of(RankSystem& system) {
  Figures found;
  if (const auto* own = system.compute().strategy().capability<OwnFigures>()) {
    for (const auto& [name, value] : own->own_figures(system.compute().steps_done())) found.emplace(name, value);
  }
  return found;
}

// Those of rank 0 after each step.
std::vector<Figures> figures_by_step(SmallTraining& training) {
  std::vector<Figures> found;
  training.before_step = [&](RankSystem& system, torch::nn::Module&, std::int64_t step) {
    if (step > 0 && system.compute().rank() == 0) found.push_back(figures_of(system));
  };
  training.at_end = [&](RankSystem& system, Optimizer&) {
    if (system.compute().rank() == 0) found.push_back(figures_of(system));
  };
  CHECK(testing::joined(training.run().errors) == "");
  return found;
}

}  // namespace

TEST_CASE("[T07] local_sgd says how often its ranks have met, and when they meet next") {
  SmallTraining training("local_sgd", 2);
  training.steps = 5;
  training.jobs.options.strategy.sync_every = 2;
  const auto found = figures_by_step(training);
  REQUIRE(found.size() == 5);
  CHECK(found[0] == Figures{{"outer_steps", 0}, {"next_outer_in", 1}});
  CHECK(found[1] == Figures{{"outer_steps", 1}, {"next_outer_in", 2}});
  CHECK(found[4] == Figures{{"outer_steps", 2}, {"next_outer_in", 1}});
}

TEST_CASE("[T07] a wrapped strategy's figures are there, and ddp has none") {
  SmallTraining switching("ddp", 2);
  switching.steps = 4;
  switching.jobs.options.strategy.switch_at = "2:local_sgd";
  switching.jobs.options.strategy.sync_every = 4;
  const auto found = figures_by_step(switching);
  REQUIRE(found.size() == 4);
  CHECK(found[0].empty());
  CHECK(found[1] == Figures{{"outer_steps", 0}, {"next_outer_in", 4}});  // before its first step
  CHECK(found[3] == Figures{{"outer_steps", 0}, {"next_outer_in", 2}});
}

TEST_CASE("[T07] of a fragment that is under way the figures say when the next one begins") {
  SmallTraining training("diloco", 2);
  training.steps = 9;
  training.jobs.options.strategy.sync_every = 4;
  training.jobs.options.strategy.diloco_overlap = 2;
  std::vector<double> next;
  for (const auto& figures : figures_by_step(training)) next.push_back(figures.at("next_outer_in"));
  CHECK(next == std::vector<double>{3, 2, 1, 4, 3, 2, 1, 4, 3});
}
