#include "strategies/sharded/gather_plan.hpp"

#include "tests/catch.hpp"

using namespace troupe;

namespace {

using Units = GatherPlan::Units;

void request(GatherPlan& plan, const Units& units) {
  for (const auto unit : units) plan.request(unit);
}

Units taken(GatherPlan& plan) {
  Units units;
  while (!plan.at_end()) units.push_back(plan.take());
  return units;
}

}  // namespace

TEST_CASE("[F04] a phase's plan is what all ranks requested in the one before, and nothing where they differ") {
  GatherPlan plan({});
  CHECK(plan.at_end());
  request(plan, {2, 0, 2});
  plan.end_phase(/*all_alike=*/true);
  CHECK(plan.next() == 2);
  CHECK(taken(plan) == Units{2, 0, 2});
  request(plan, {2, 1});
  plan.end_phase(/*all_alike=*/false);
  CHECK(plan.at_end());
  CHECK(plan.units().empty());
}

TEST_CASE("[F04] requests have one hash on ranks that asked for the same units in the same order") {
  GatherPlan plan({}), other({});
  CHECK(plan.hash_of_requests() == other.hash_of_requests());
  request(plan, {0, 1});
  request(other, {1, 0});
  CHECK(plan.hash_of_requests() != other.hash_of_requests());
  plan.end_phase(true);
  other.end_phase(true);
  CHECK(plan.hash_of_requests() == other.hash_of_requests());  // of the phase that begins
}

TEST_CASE("[F04] an evaluation begins without a plan, leaves none, and the plan of steps comes back") {
  GatherPlan plan({});
  request(plan, {0, 1});
  plan.end_phase(true);
  plan.begin_evaluation();
  CHECK(plan.at_end());
  request(plan, {1});
  plan.end_phase(true);
  CHECK(taken(plan) == Units{0, 1});
}

TEST_CASE("[F04] units of each phase are planned once each, requested ones first, and stay where ranks differ") {
  GatherPlan plan({0, 1, 2});
  CHECK(taken(plan) == Units{0, 1, 2});
  request(plan, {2, 0, 2});
  plan.end_phase(true);
  CHECK(taken(plan) == Units{2, 0, 1});
  request(plan, {1});
  plan.end_phase(false);
  CHECK(taken(plan) == Units{2, 0, 1});
  plan.begin_evaluation();
  request(plan, {1});
  plan.end_phase(true);
  CHECK(taken(plan) == Units{2, 0, 1});
}
