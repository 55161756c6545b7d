#include "launch/process/environment.hpp"

#include <map>

#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"

using namespace troupe;

namespace {
RankEnvironment read(const std::map<std::string, std::string>& variables) {
  return read_environment([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}
}  // namespace

TEST_CASE("[L02] torchrun's environment is understood") {
  CHECK_FALSE(read({}).launched);
  const auto place = read({{"RANK", "3"},
                           {"WORLD_SIZE", "4"},
                           {"LOCAL_RANK", "1"},
                           {"LOCAL_WORLD_SIZE", "2"},
                           {"GROUP_RANK", "1"},
                           {"MASTER_ADDR", "10.0.0.1"},
                           {"MASTER_PORT", "29500"},
                           {"TORCHELASTIC_RUN_ID", "run"}});
  CHECK(place.launched);
  CHECK(place.rank == 3);
  CHECK(place.world_size == 4);
  CHECK(place.local_rank == 1);
  CHECK(place.local_world_size == 2);
  CHECK(place.node == "node1");
  CHECK(place.master_addr == "10.0.0.1");
  CHECK(place.master_port == 29500);
  CHECK(place.run.job_id == "run");
  CHECK(place.interface_address == "");  // there are other nodes: not loopback
  CHECK(read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_PORT", "29500"}})
            .interface_address == "127.0.0.1");
}

TEST_CASE("[R01] torchrun's restarts of a job are told from its first start, and from our launcher's lives of a rank") {
  std::map<std::string, std::string> variables{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"TORCHELASTIC_RESTART_COUNT", "0"}};
  CHECK_FALSE(read(variables).restarted);
  variables["TORCHELASTIC_RESTART_COUNT"] = "2";
  CHECK(read(variables).restarted);
  variables["TROUPE_COORDINATOR"] = "127.0.0.1:4242";
  CHECK_FALSE(read(variables).restarted);
}

TEST_CASE("[L02] our own environment names the coordinator") {
  const auto place =
      read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TROUPE_COORDINATOR", "127.0.0.1:4242"}, {"TROUPE_JOB_ID", "job"}});
  CHECK(place.coordinator_host == "127.0.0.1");
  CHECK(place.coordinator_port == 4242);
  CHECK(place.run.job_id == "job");
  CHECK(place.recovery);
}

TEST_CASE("[L02] a rank is told whether its job outlives the loss of one") {
  for (const std::string said : {"0", "1"}) {
    const auto place =
        read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TROUPE_COORDINATOR", "127.0.0.1:4242"}, {"TROUPE_RECOVERY", said}});
    CHECK(place.recovery == (said == "1"));
  }
}

TEST_CASE("[L02] a wrong environment is named by its variable") {
  CHECK_THROWS_WITH(read({{"RANK", "0"}}), Catch::Contains("WORLD_SIZE"));
  CHECK_THROWS_WITH(read({{"WORLD_SIZE", "2"}}), Catch::Contains("RANK"));
  CHECK_THROWS_WITH(read({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), Catch::Contains("not below WORLD_SIZE"));
  CHECK_THROWS_WITH(read({{"RANK", "x"}, {"WORLD_SIZE", "2"}}), Catch::Contains("RANK") && Catch::Contains("'x'"));
  CHECK_THROWS_WITH(read({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), Catch::Contains("MASTER_PORT"));
  CHECK_THROWS_WITH(read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "99999"}}),
                    Catch::Contains("MASTER_PORT"));
  CHECK_THROWS_WITH(read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TROUPE_COORDINATOR", "nonsense"}}),
                    Catch::Contains("host:port"));
}
