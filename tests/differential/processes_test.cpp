// Jobs with a process for each rank, as ./dev differential --processes runs them.
#include "tests/catch.hpp"
#include "tests/differential/compare.hpp"

using namespace troupe::differential;

namespace {

std::string verdict_of(const std::string& job) {
  return verdict(nlohmann::json::parse(job).get<Job>(), Ranks::processes);
}

void right(const std::vector<std::string>& jobs) {
  for (const auto& job : jobs) {
    INFO(job);
    CHECK(verdict_of(job) == "");
  }
}

}  // namespace

TEST_CASE("[T01] with processes for ranks a job is one rank's loop, if one is killed or the job is resumed, too") {
  right({R"({"ranks": 2, "shuffle": true})", R"({"ranks": 3, "strategy": "fsdp", "event": "kill", "kill_at": "vote"})",
         R"({"ranks": 2, "loop": "framework", "event": "resume", "resume_ranks": 3})",
         R"({"ranks": 2, "strategy": "fsdp", "optimizer": "adamw", "rule": "other", "event": "kill",
             "kill_at": "distribute"})"});
}

TEST_CASE("[T01] what a rank's process says of a refusal is the job's verdict") {
  CHECK_THAT(verdict_of(R"({"ranks": 2, "frozen": "first"})"),
             Catch::StartsWith("ended: ") && Catch::Contains("is trained now, and was frozen"));
}
