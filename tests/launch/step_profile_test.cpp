#include "launch/step_profile.hpp"

#include "tests/catch.hpp"

using namespace troupe;

TEST_CASE("a profile's parts add up to the step, and overlap is what the reducer did while compute did not wait") {
  StepProfile profile;
  StepReport report;
  report.step_ms = 100;
  report.exposed_ms = 10;
  report.optimizer_ms = 5;
  report.reduce_ms = 40;
  report.buckets = 3;
  report.launched_before_end = 2;
  profile.add(report, 15, 60);
  report.exposed_ms = 50;  // waited for a slow rank: longer than the reducer worked
  profile.add(report, 15, 20);
  const auto table = profile.table();
  INFO(table);
  CHECK_THAT(table, Catch::Contains("mean of 2 steps"));
  CHECK_THAT(table, Catch::Contains("data wait                                15.000 ms   15.0 %"));
  CHECK_THAT(table, Catch::Contains("forward and backward                     40.000 ms   40.0 %"));
  CHECK_THAT(table, Catch::Contains("exposed communication, with the vote     30.000 ms   30.0 %"));
  CHECK_THAT(table, Catch::Contains("optimizer                                 5.000 ms    5.0 %"));
  CHECK_THAT(table, Catch::Contains("rest: validation, checkpoints, logs      10.000 ms   10.0 %"));
  CHECK_THAT(table, Catch::Contains("step                                    100.000 ms  100.0 %"));
  CHECK_THAT(table, Catch::Contains("reducer busy, beside these               40.000 ms"));
  CHECK_THAT(table, Catch::Contains("37.5 % of that or more"));  // 30 of the first step's 40, nothing of the second's
  CHECK_THAT(table, Catch::Contains("2.0 of 3.0 buckets"));
}

TEST_CASE("a profile without steps says so, and one rank alone has no reducer to show") {
  StepProfile profile;
  CHECK(profile.table() == "profile: no step was made\n");
  StepReport report;
  report.step_ms = 1;
  profile.add(report, 0, 1);
  CHECK(profile.table().find("reducer") == std::string::npos);
}
