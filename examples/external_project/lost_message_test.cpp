// A strategy under drawn faults, with Catch2: what is wrong in one of the two is found, and comes again. Then its
// actor by itself.
//
// expect: passed, in some seconds.
#include <troupe/testing.hpp>
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
#endif

#include "late_average.hpp"
#include "wave.hpp"

namespace {

using namespace troupe::testing;

troupe::Job small_job() {
  register_late_average();
  return job(128);
}

Settings settings_of(const std::string& strategy) {
  return {.max_steps = 6, .epochs = 2, .batch_size = 32, .strategy = strategy};
}

}  // namespace

TEST_CASE("no fault stops a strategy that begins anew with its actor") {
  const auto found =
      Cluster({.hosts = 1, .ranks_per_host = 2})
          .explore(small_job(), {.runs = 40, .settings = settings_of("late_average"), .judge = same_steps});
  INFO(found.test);
  CHECK(found.wrong.empty());
}

TEST_CASE("a message that is waited for and never comes is found, and comes again a hundred times") {
  const auto settings = settings_of("late_average_that_forgets");
  const auto found = Cluster({.hosts = 1, .ranks_per_host = 2})
                         .explore(small_job(), {.runs = 40, .settings = settings, .judge = same_steps});
  INFO(found.test);
  REQUIRE_FALSE(found.wrong.empty());
  CHECK(found.faults.size() <= 3);
  Cluster again({.hosts = 1, .ranks_per_host = 2, .seed = found.seed});
  for (const auto& fault : found.faults) again.add(fault);
  const auto first = again.train(small_job(), settings);
  CHECK(first.exit_code() != 0);
  int same = 0;
  for (int i = 0; i < 100; ++i) {
    const auto run = again.train(small_job(), settings);
    same += run.exit_code() == first.exit_code() && run.fingerprint() == first.fingerprint() ? 1 : 0;
  }
  CHECK(same == 100);
}

TEST_CASE("a message that its actor never gets costs the strategy a generation, and no step") {
  using namespace std::chrono_literals;
  Cluster cluster({.hosts = 2, .ranks_per_host = 1});
  cluster.drop(Message{.from = Rank{1}, .type = "Average", .nth = 2});
  const auto run = cluster.train(small_job(), settings_of("late_average"));
  const auto undisturbed = cluster.undisturbed(small_job(), settings_of("late_average"));
  INFO(run.error());
  CHECK(same_steps(run, undisturbed).empty());
  CHECK(run.memberships().size() == 2);
  CHECK(run.time() >= 60s);  // its collective_timeout, of the cluster's clock
}

TEST_CASE("the strategy's actor averages in place, and ends with what its communicator says") {
  const std::shared_ptr<troupe::Communicator> communicator = troupe::make_communicator({.name = "one rank"});
  ActorAlone<AverageActor> alone(average_behavior);
  const auto copy = torch::tensor({1.0F, 2.0F});
  (void)alone.ask(Average{communicator, copy});
  CHECK(at::equal(copy, torch::tensor({1.0F, 2.0F})));
  CHECK(alone.sent().empty());
  communicator->abort({.code = troupe::ErrorCode::peer_lost, .cause = "rank 1 died"});
  CHECK_THROWS_AS(alone.ask(Average{communicator, copy}), troupe::Error);
  CHECK(alone.ended());
  CHECK(alone.reason().find("rank 1 died") != std::string::npos);
}
