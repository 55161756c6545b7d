// Slurm without Slurm: what it sets, after public dumps of jobs and its own src/common/env.c, against the plan.
#include <algorithm>
#include <map>

#include "tests/catch.hpp"
#include "tests/support/running_process.hpp"

using namespace troupe;

namespace {

using Words = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

struct Situation {
  std::string name;
  Variables variables;
  Words flags;
  int code = 0;
  std::string output;  // all of it
};

Variables with(Variables some, const Variables& more) {
  for (const auto& [name, value] : more) some[name] = value;
  return some;
}

// sbatch -N2 --ntasks-per-node=2: the script on the first node. It has a SLURM_PROCID, and no step.
const Variables kScript{{"SLURM_JOB_ID", "4711"},
                        {"SLURM_JOBID", "4711"},
                        {"SLURM_JOB_NODELIST", "n[01-02]"},
                        {"SLURM_NODELIST", "n[01-02]"},
                        {"SLURM_JOB_NUM_NODES", "2"},
                        {"SLURM_NNODES", "2"},
                        {"SLURM_NTASKS", "4"},
                        {"SLURM_NPROCS", "4"},
                        {"SLURM_NTASKS_PER_NODE", "2"},
                        {"SLURM_PROCID", "0"},
                        {"SLURM_TASKS_PER_NODE", "2(x2)"},
                        {"SLURM_LOCALID", "0"},
                        {"SLURM_NODEID", "0"},
                        {"SLURMD_NODENAME", "n01"},
                        {"SLURM_GTIDS", "0"},
                        {"ENVIRONMENT", "BATCH"},
                        {"SLURM_CPUS_ON_NODE", "16"},
                        {"SLURM_JOB_CPUS_PER_NODE", "16(x2)"}};

// salloc -N2 -n4: its shell on the login node.
const Variables kShell{
    {"SLURM_JOB_ID", "4712"}, {"SLURM_JOB_NODELIST", "n[01-02]"}, {"SLURM_NNODES", "2"},         {"SLURM_NTASKS", "4"},
    {"SLURM_NPROCS", "4"},    {"SLURM_TASKS_PER_NODE", "2(x2)"},  {"SLURM_SUBMIT_HOST", "login"}};

// The same where the cluster has LaunchParameters=use_interactive_step: a step with one task on the first node.
const Variables kInteractive = with(kShell, {{"SLURM_STEP_ID", "4294967290"},
                                             {"SLURM_STEPID", "4294967290"},
                                             {"SLURM_STEP_NODELIST", "n01"},
                                             {"SLURM_STEP_NUM_NODES", "1"},
                                             {"SLURM_STEP_NUM_TASKS", "1"},
                                             {"SLURM_STEP_TASKS_PER_NODE", "1"},
                                             {"SLURM_PROCID", "0"},
                                             {"SLURM_NODEID", "0"},
                                             {"SLURM_LOCALID", "0"},
                                             {"SLURMD_NODENAME", "n01"}});

// What srun --ntasks-per-node=1 adds for its task on the second node.
const Variables kStep{{"SLURM_STEP_ID", "0"},
                      {"SLURM_STEPID", "0"},
                      {"SLURM_STEP_NODELIST", "n[01-02]"},
                      {"SLURM_STEP_NUM_NODES", "2"},
                      {"SLURM_STEP_NUM_TASKS", "2"},
                      {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                      {"SLURM_NTASKS", "2"},
                      {"SLURM_TASKS_PER_NODE", "1(x2)"},
                      {"SLURM_PROCID", "1"},
                      {"SLURM_NODEID", "1"},
                      {"SLURM_LOCALID", "0"},
                      {"SLURMD_NODENAME", "n02"}};

// srun in a step of eight tasks, a GPU each.
Variables task_of_eight(const std::string& rank) {
  return with(kScript, {{"SLURM_STEP_ID", "1"},
                        {"SLURM_STEP_NODELIST", "n01"},
                        {"SLURM_STEP_TASKS_PER_NODE", "8"},
                        {"SLURM_GPUS_ON_NODE", "8"},
                        {"SLURM_PROCID", rank},
                        {"SLURM_LOCALID", rank},
                        {"SLURM_NODEID", "0"}});
}

// sbatch of two groups: `-n2 : -N2 --ntasks-per-node=4`.
const Variables kGroups{{"SLURM_JOB_ID", "4720"},
                        {"SLURM_JOB_NODELIST", "n01"},
                        {"SLURM_TASKS_PER_NODE", "2"},
                        {"SLURM_HET_SIZE", "2"},
                        {"SLURM_JOB_ID_HET_GROUP_0", "4720"},
                        {"SLURM_JOB_ID_HET_GROUP_1", "4721"},
                        {"SLURM_JOB_NODELIST_HET_GROUP_0", "n01"},
                        {"SLURM_JOB_NODELIST_HET_GROUP_1", "g[11-12]"},
                        {"SLURM_TASKS_PER_NODE_HET_GROUP_0", "2"},
                        {"SLURM_TASKS_PER_NODE_HET_GROUP_1", "4(x2)"},
                        {"SLURM_NTASKS_HET_GROUP_0", "2"},
                        {"SLURM_NTASKS_HET_GROUP_1", "8"},
                        {"SLURM_PROCID", "0"},
                        {"SLURMD_NODENAME", "n01"}};

const std::string kTwoByTwo =
    "plan: 4 ranks on 2 hosts, started from here\n"
    "  n01: ranks 0 to 1, over ssh\n"
    "  n02: ranks 2 to 3, over ssh\n";
const std::string kSecondNode =
    "plan: node 1 of 2 starts ranks 4 to 7 of 8; the same command runs on each node\n"
    "  node 0 is n01, port 29500\n";

// A job of one node that asks for eight GPUs and no number of tasks: Slurm counts the CPUs.
Variables eight_gpus(const std::string& cpus) {
  return {{"SLURM_JOB_ID", "4730"},       {"SLURM_JOB_NODELIST", "g7"},
          {"SLURM_TASKS_PER_NODE", cpus}, {"SLURM_CPUS_ON_NODE", cpus},
          {"SLURM_PROCID", "0"},          {"SLURMD_NODENAME", "g7"},
          {"SLURM_GPUS_ON_NODE", "8"},    {"SLURM_JOB_GPUS", "0,1,2,3,4,5,6,7"}};
}

const std::vector<Situation> kSituations{
    {"a script", kScript, {}, 0, kTwoByTwo},
    {"a script that knows its step", with(kScript, {{"SLURM_STEP_ID", "4294967291"}}), {}, 0, kTwoByTwo},
    {"salloc's shell", kShell, {}, 0, kTwoByTwo},
    {"salloc's interactive step", kInteractive, {}, 0, kTwoByTwo},
    {"srun in a script", with(kScript, kStep), {"--nproc-per-node", "4"}, 0, kSecondNode},
    {"srun in salloc's shell", with(kShell, kStep), {"--nproc-per-node", "4"}, 0, kSecondNode},
    {"srun in an interactive step", with(kInteractive, kStep), {"--nproc-per-node", "4"}, 0, kSecondNode},
    {"srun on one of the nodes",
     with(kScript, {{"SLURM_STEP_ID", "3"},
                    {"SLURM_STEP_NODELIST", "n02"},
                    {"SLURM_STEP_TASKS_PER_NODE", "1"},
                    {"SLURM_NODEID", "0"},
                    {"SLURMD_NODENAME", "n02"}}),
     {"--nproc-per-node", "2"},
     0,
     "plan: node 0 of 1 starts ranks 0 to 1 of 2; the same command runs on each node\n  node 0 is n02, port 29500\n"},
    {"a task of an array",
     with(kScript, {{"SLURM_ARRAY_JOB_ID", "4700"}, {"SLURM_ARRAY_TASK_ID", "3"}}),
     {},
     0,
     kTwoByTwo},
    {"ranks of each node by the flag",
     kScript,
     {"--nproc-per-node", "1"},
     0,
     "plan: 2 ranks on 2 hosts, started from here\n  n01: rank 0, over ssh\n  n02: rank 1, over ssh\n"},
    {"two groups",
     kGroups,
     {},
     0,
     "plan: 10 ranks on 3 hosts, started from here\n"
     "  n01: ranks 0 to 1, over ssh\n"
     "  g11: ranks 2 to 5, over ssh\n"
     "  g12: ranks 6 to 9, over ssh\n"},
    {"two groups on one node",
     with(kGroups, {{"SLURM_JOB_NODELIST_HET_GROUP_1", "n01"}, {"SLURM_TASKS_PER_NODE_HET_GROUP_1", "3"}}),
     {},
     0,
     "plan: 5 ranks on 1 host, started from here\n  n01: ranks 0 to 4, over ssh\n"},
    {"srun in two groups",
     with(kGroups, {{"SLURM_STEP_ID", "0"},
                    {"SLURM_STEP_NODELIST", "n01,g[11-12]"},
                    {"SLURM_STEP_TASKS_PER_NODE", "1(x3)"},
                    {"SLURM_PROCID", "2"},
                    {"SLURM_NODEID", "2"},
                    {"SLURM_LOCALID", "0"},
                    {"SLURMD_NODENAME", "g12"}}),
     {"--nproc-per-node", "4"},
     0,
     "plan: node 2 of 3 starts ranks 8 to 11 of 12; the same command runs on each node\n"
     "  node 0 is n01, port 29500\n"},
    {"a task for each GPU",
     task_of_eight("0"),
     {},
     2,
     "troupe: --slurm: srun starts it 8 times on n01, and it starts a node's ranks itself; "
     "srun --ntasks-per-node=1 troupe launch --slurm --nproc-per-node 8 ...\n"},
    {"its other tasks say nothing", task_of_eight("5"), {}, 2, ""},
    {"GPUs and no number of tasks, one CPU",
     eight_gpus("1"),
     {},
     0,
     "plan: 1 rank on 1 host, started from here\n  g7: rank 0, over ssh\n"
     "troupe: note: 1 rank on g7, which has 8 GPUs; the job does not set a number of tasks, so Slurm counts CPUs; for "
     "one "
     "rank on each GPU add --nproc-per-node 8\n"},
    {"GPUs and no number of tasks, many CPUs",
     eight_gpus("96"),
     {},
     0,
     "plan: 96 ranks on 1 host, started from here\n  g7: ranks 0 to 95, over ssh\n"
     "troupe: note: 96 ranks on g7, which has 8 GPUs; the job does not set a number of tasks, so Slurm counts CPUs; "
     "for "
     "one rank on each GPU add --nproc-per-node 8\n"},
    {"GPUs, and as many ranks by the flag",
     eight_gpus("96"),
     {"--nproc-per-node", "8"},
     0,
     "plan: 8 ranks on 1 host, started from here\n  g7: ranks 0 to 7, over ssh\n"},
    {"srun, GPUs and one rank",
     with(eight_gpus("96"),
          {{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NODELIST", "g7"}, {"SLURM_STEP_TASKS_PER_NODE", "1"}}),
     {},
     0,
     "plan: node 0 of 1 starts rank 0 of 1; the same command runs on each node\n  node 0 is g7, port 29500\n"
     "troupe: note: 1 rank on g7, which has 8 GPUs; for one rank on each GPU add --nproc-per-node 8\n"},
    {"a time limit", kScript, {"--time-limit", "3600"}, 0, kTwoByTwo + "  asked to stop after 3480 s\n"},
    {"a short one", kScript, {"--time-limit", "60"}, 0, kTwoByTwo + "  asked to stop after 48 s\n"},
    {"Slurm's own end is over",
     with(kScript, {{"SLURM_JOB_END_TIME", "1700000000"}}),
     {},
     0,
     kTwoByTwo + "  asked to stop after 0 s\n"},
    {"no Slurm job", {}, {}, 2, "troupe: --slurm: this is not a Slurm job; use it inside sbatch, salloc or srun\n"},
};

std::string sorted_lines(std::string text) {  // the two streams come in either order
  std::vector<std::string> lines;
  for (std::size_t end = 0; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1))
    lines.push_back(text.substr(0, end + 1));
  std::sort(lines.begin(), lines.end());
  for (const auto& line : lines) text += line;
  return text;
}

}  // namespace

TEST_CASE("[L02] every kind of Slurm job gets the hosts, ranks and way to start them that Slurm allots") {
  for (const auto& situation : kSituations) {
    Words command{"/usr/bin/env", "-i"};
    for (const auto& [name, value] : situation.variables) command.push_back(name + "=" + value);
    for (const std::string word : {TROUPE_PROGRAM, "launch", "--slurm", "--dry-run"}) command.push_back(word);
    command.insert(command.end(), situation.flags.begin(), situation.flags.end());
    command.emplace_back("./train");
    const auto done = testing::RunningProcess(command).finish();
    INFO(situation.name);
    CHECK(done.code == situation.code);
    CHECK(sorted_lines(done.output) == sorted_lines(situation.output));
  }
}
