#include "launch/hosts/slurm.hpp"

#include <map>
#include <random>

#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"

using namespace troupe;
using Catch::Contains;

namespace {

using Names = std::vector<std::string>;

std::optional<SlurmAllocation> read(const std::map<std::string, std::string>& variables) {
  return read_slurm([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

}  // namespace

TEST_CASE("[L02] Slurm's compressed node list is expanded") {
  CHECK(expand_slurm_nodes("node1") == Names{"node1"});
  CHECK(expand_slurm_nodes("node[1-3,7],gpu-a[01-02]") ==
        Names{"node1", "node2", "node3", "node7", "gpu-a01", "gpu-a02"});
  CHECK(expand_slurm_nodes("n[08-11]") == Names{"n08", "n09", "n10", "n11"});
  CHECK(expand_slurm_nodes("n[9-10]-ib") == Names{"n9-ib", "n10-ib"});
  CHECK(expand_slurm_nodes("rack[0-1]n[0-1]") == Names{"rack0n0", "rack0n1", "rack1n0", "rack1n1"});
  CHECK(expand_slurm_nodes("a,b,c") == Names{"a", "b", "c"});
  CHECK(expand_slurm_nodes("n[1-10000]").size() == 10000);
}

TEST_CASE("[L02] Slurm's task counts are expanded") {
  CHECK(expand_slurm_tasks("2(x3),1") == std::vector<int>{2, 2, 2, 1});
  CHECK(expand_slurm_tasks("8") == std::vector<int>{8});
  CHECK(expand_slurm_tasks("1,2,3(x2)") == std::vector<int>{1, 2, 3, 3});
}

TEST_CASE("[L02] a Slurm job gives hosts, slots and this process's place") {
  CHECK_FALSE(read({}));
  const auto place = read({{"SLURM_JOB_ID", "4711"},
                           {"SLURM_JOB_NODELIST", "node[1-3,7]"},
                           {"SLURM_TASKS_PER_NODE", "2(x3),1"},
                           {"SLURM_STEP_ID", "0"},
                           {"SLURM_NODEID", "2"},
                           {"SLURM_PROCID", "5"},
                           {"SLURM_LOCALID", "1"}});
  REQUIRE(place);
  CHECK(place->job_id == "4711");
  REQUIRE(place->hosts.size() == 4);
  CHECK(place->hosts[2].name == "node3");
  CHECK(place->hosts[2].address == "node3");
  CHECK(place->hosts[2].slots == 2);
  CHECK(place->hosts[3].slots == 1);
  CHECK(place->node == 2);
  CHECK(place->rank == 5);
  CHECK(place->local_rank == 1);

  SECTION(
      "outside a step of srun there is no rank, although a script has SLURM_PROCID, and a node has one slot unless "
      "something says more") {
    const auto script = read({{"SLURM_JOB_ID", "1"}, {"SLURM_JOB_NODELIST", "a[1-2]"}, {"SLURM_PROCID", "0"}});
    CHECK(script->rank == -1);
    CHECK(script->local_rank == -1);
    CHECK(script->hosts[1].slots == 1);
    CHECK(read({{"SLURM_JOB_ID", "1"}, {"SLURM_JOB_NODELIST", "a[1-2]"}, {"SLURM_NTASKS_PER_NODE", "4"}})
              ->hosts[1]
              .slots == 4);
  }
  SECTION("the node's name stands in for its number") {
    CHECK(read({{"SLURM_JOB_ID", "1"}, {"SLURM_JOB_NODELIST", "a[1-3]"}, {"SLURMD_NODENAME", "a2"}})->node == 1);
  }
  SECTION("a step on some of the nodes comes before the job") {
    const auto step = read({{"SLURM_JOB_ID", "1"},
                            {"SLURM_JOB_NODELIST", "a[1-3]"},
                            {"SLURM_TASKS_PER_NODE", "8(x3)"},
                            {"SLURM_STEP_ID", "4"},
                            {"SLURM_PROCID", "1"},
                            {"SLURM_STEP_NODELIST", "a[2-3]"},
                            {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}});
    CHECK(step->hosts.size() == 2);
    CHECK(step->hosts[0].name == "a2");
    CHECK(step->hosts[0].slots == 1);
  }
}

TEST_CASE("[L02] a wrong Slurm environment is named by its variable") {
  const auto with = [](std::map<std::string, std::string> more) {
    more.emplace("SLURM_JOB_ID", "1");
    more.emplace("SLURM_JOB_NODELIST", "a[1-2]");
    return more;
  };
  CHECK_THROWS_WITH(read({{"SLURM_JOB_ID", "1"}}), Contains("SLURM_JOB_NODELIST") && Contains("not set"));
  for (const std::string bad : {"a[",
                                "a]",
                                "a[1",
                                "a[[1]]",
                                "a[]",
                                "a[x]",
                                "a[3-1]",
                                "a[1-2",
                                "a,,b",
                                ",",
                                "a[1-99999999999999999999]",
                                "a[1-100000]",
                                "a[0-999]b[0-999]",
                                "a[-1]",
                                "a[1-]",
                                "a b",
                                "-oProxyCommand=x",
                                "a[1-2],a1",
                                "$(id)",
                                "a:8"}) {
    INFO(bad);
    CHECK_THROWS_WITH(read({{"SLURM_JOB_ID", "1"}, {"SLURM_JOB_NODELIST", bad}}), Contains("SLURM_JOB_NODELIST"));
  }
  for (const std::string bad :
       {"2(x3)", "0", "2(x", "2(x0)", "2(y2)", "x", "2(x99999999999)", "1,", "-1,2", "9999,1"}) {
    INFO(bad);
    CHECK_THROWS_WITH(read(with({{"SLURM_TASKS_PER_NODE", bad}})), Contains("SLURM_TASKS_PER_NODE") && Contains(bad));
  }
  const auto step = [&](std::map<std::string, std::string> more) {
    more.emplace("SLURM_STEP_ID", "0");
    more.emplace("SLURM_PROCID", "0");
    return with(more);
  };
  CHECK_THROWS_WITH(read(step({{"SLURM_NODEID", "2"}})), Contains("SLURM_NODEID") && Contains("'2'"));
  CHECK_THROWS_WITH(read(step({{"SLURM_NODEID", "-1"}})), Contains("SLURM_NODEID"));
  CHECK_THROWS_WITH(read(with({{"SLURMD_NODENAME", "b1"}})), Contains("SLURMD_NODENAME") && Contains("'b1'"));
  CHECK_THROWS_WITH(read(step({{"SLURM_PROCID", "2"}})), Contains("SLURM_PROCID"));
  CHECK_THROWS_WITH(read(step({{"SLURM_LOCALID", "1"}})), Contains("SLURM_LOCALID"));
  CHECK_THROWS_WITH(read(step({{"SLURM_STEP_ID", "batch"}})), Contains("SLURM_STEP_ID") && Contains("'batch'"));
  CHECK_THROWS_WITH(read(with({{"SLURM_HET_SIZE", "0"}})), Contains("SLURM_HET_SIZE"));
  CHECK_THROWS_WITH(read(with({{"SLURM_HET_SIZE", "2"}})), Contains("SLURM_JOB_NODELIST_HET_GROUP_0"));
}

TEST_CASE("[L02] any bytes are either a Slurm node list or refused") {
  std::mt19937 random(7);
  const std::string alphabet = "a1[]-,019x()";
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (auto n = random() % 16; n > 0; --n) text += alphabet[random() % alphabet.size()];
    try {
      const auto nodes = expand_slurm_nodes(text);
      REQUIRE(nodes.size() <= kMaxHosts);
    } catch (const Error& error) {
      REQUIRE(error.code() == ErrorCode::usage);
    }
    try {
      const auto tasks = expand_slurm_tasks(text);
      REQUIRE(tasks.size() <= kMaxHosts);
    } catch (const Error& error) {
      REQUIRE(error.code() == ErrorCode::usage);
    }
  }
}
