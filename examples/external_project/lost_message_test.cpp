// A strategy under drawn faults, with Catch2: what is wrong in one of the two is found, and comes again.
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
