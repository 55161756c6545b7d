// What a second run does to the files of the first: nothing.
#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>

#include <nlohmann/json.hpp>

#include "launch/process/local_address.hpp"
#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/count_of.hpp"
#include "tests/support/launch.hpp"

using namespace troupe;
using testing::Finished;
using testing::RunningProcess;
using testing::ScratchDirectory;

namespace fs = std::filesystem;

namespace {

using Words = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// A run of 16 steps.
const Words kProbe{TROUPE_RANK_PROBE, "--batch_size", "16", "--epochs", "1"};
const Words kAlone = kProbe, kSimulated = kProbe + Words{"--ranks", "2"};

Words launched(const Words& flags) { return Words{TROUPE_PROGRAM, "launch"} + flags + kProbe; }

RunningProcess start_in(const std::string& folder, const Words& words, const Variables& environment = {}) {
  return RunningProcess(Words{"/bin/sh", "-c", R"(cd "$0" && exec "$@")", folder} + words, environment);
}

Finished run_in(const ScratchDirectory& folder, const Words& words, const Variables& environment = {}) {
  return start_in(folder.path(), words, environment).finish();
}

// By name: contents, or where a link leads.
std::map<std::string, std::string> files_of(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_symlink()) {
      files[entry.path()] = fs::read_symlink(entry.path());
    } else if (entry.is_regular_file()) {
      files[entry.path()] = testing::read_text(entry.path());
    }
  }
  return files;
}

std::set<std::string> entries_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

nlohmann::json manifest_of(const std::string& checkpoint) {
  return nlohmann::json::parse(testing::read_text(checkpoint + "/manifest.json"));
}

Variables torchrun(int rank, const std::string& port, int restarts) {
  const auto id = std::to_string(rank);
  return {{"RANK", id},
          {"LOCAL_RANK", id},
          {"WORLD_SIZE", "2"},
          {"LOCAL_WORLD_SIZE", "2"},
          {"MASTER_ADDR", "localhost"},
          {"MASTER_PORT", port},
          {"TORCHELASTIC_RESTART_COUNT", std::to_string(restarts)},
          {"TORCHELASTIC_RUN_ID", "none"}};
}

// Of a range that other tests do not take; two in a row are needed.
std::string port_for(int use) { return std::to_string(21'000 + 2 * (::getpid() % 2'000) + 5'000 * use); }

void check_refused(const Finished& done, const std::string& folder) {
  INFO(done.output);
  CHECK(done.code == 2);
  CHECK_THAT(done.output, Catch::Contains(folder + " holds another run's checkpoints, the newest of step 16; ") &&
                              Catch::Contains("continue it with --resume latest, or choose another --checkpoint_dir"));
  CHECK(testing::count_of(done.output, "error: rank 0") == 1 + testing::count_of(done.output, "its last line"));
  CHECK_THAT(done.output, !Catch::Contains("model: "));
}

}  // namespace

TEST_CASE("[R02] a run that does not resume leaves another run's checkpoints as they are, and names both ways on",
          "[share]") {
  const ScratchDirectory folder;
  const auto checkpoints = folder / "c";
  const Words there{"--run_dir", "", "--checkpoint_dir", checkpoints};
  REQUIRE(run_in(folder, kAlone + there).code == 0);
  const auto files = files_of(checkpoints);
  REQUIRE(files.size() >= 4);

  check_refused(run_in(folder, kAlone + there + Words{"--probe_model", "plain"}), checkpoints);
  check_refused(run_in(folder, kSimulated + there), checkpoints);
  check_refused(run_in(folder, launched({"--nproc", "2"}) + there), checkpoints);
  check_refused(run_in(folder, launched({"--nproc", "2", "--no-recovery"}) + there), checkpoints);
  check_refused(run_in(folder, kAlone + there + Words{"--probe_own_loop"}), checkpoints);
  CHECK(files_of(checkpoints) == files);

  SECTION("a run that saves nothing may name the folder") {
    CHECK(run_in(folder, kSimulated + there + Words{"--save_every", "-1"}).code == 0);
    CHECK(files_of(checkpoints) == files);
  }
  SECTION("a run that resumes goes on from there") {
    const auto done = run_in(folder, launched({"--nproc", "2"}) + there + Words{"--resume", "latest", "--epochs", "2"});
    INFO(done.output);
    CHECK(done.code == 0);
    CHECK_THAT(done.output, Catch::Contains("resume from") && Catch::Contains("step-00000032"));
  }
  SECTION("torchrun's first start is refused, its restart is the same run") {
    const auto job = [&](int restarts) {
      const auto port = port_for(restarts);
      auto zero = start_in(folder.path(), kProbe + there, torchrun(0, port, restarts));
      auto one = start_in(folder.path(), kProbe + there, torchrun(1, port, restarts));
      auto done = zero.finish();
      CHECK((one.finish().code == 0) == (restarts > 0));
      return done;
    };
    check_refused(job(0), checkpoints);
    CHECK(files_of(checkpoints) == files);
    CHECK(job(1).code == 0);
  }
}

TEST_CASE("[R02] a run that resumes leaves another run's checkpoints and records as they are", "[share]") {
  const ScratchDirectory folder;
  for (const auto* run : {"a", "b"})
    REQUIRE(run_in(folder, kAlone + Words{"--run_dir", run, "--save_every", "4", "--keep_last", "9"}).code == 0);
  const auto files = files_of(folder / "b");
  const Words more{"--epochs", "2", "--save_every", "4", "--keep_last", "1"};
  const std::vector<std::pair<Words, std::string>> pairs{
      {{"--resume", "a/checkpoints", "--checkpoint_dir", "b/checkpoints"},
       "b/checkpoints holds checkpoints of another run than a"},
      {{"--resume", "a", "--checkpoint_dir", "b/checkpoints"}, "b/checkpoints holds checkpoints of another run than a"},
      {{"--run_dir", "b", "--resume", "a/checkpoints"}, "b is the folder of another run than a"},
      {{"--run_dir", "b", "--resume", "a"}, "b is the folder of another run than a"},
      {{"--run_dir", "b", "--checkpoint_dir", "a/checkpoints", "--resume", "latest"},
       "b is the folder of another run than a"}};
  for (const auto& [words, refusal] : pairs) {
    for (const auto& start : {kAlone, kSimulated, launched({"--nproc", "2"})}) {
      CAPTURE(start, words);
      const auto done = run_in(folder, start + words + more);
      INFO(done.output);
      CHECK(done.code == 2);
      CHECK_THAT(done.output, Catch::Contains(refusal) && !Catch::Contains("model: "));
      CHECK(testing::count_of(done.output, ", which resume names") == 1);
      CHECK(files_of(folder / "b") == files);
    }
  }
  // The launcher cannot read ahead what a script gives the program.
  testing::write_text(folder / "start.sh", "exec \"$@\" --resume a/checkpoints --checkpoint_dir b/checkpoints\n");
  const auto hidden =
      run_in(folder, Words{TROUPE_PROGRAM, "launch", "--nproc", "2", "/bin/sh", "start.sh"} + kProbe + more);
  INFO(hidden.output);
  CHECK(hidden.code == 2);
  CHECK_THAT(hidden.output, Catch::Contains("b/checkpoints holds checkpoints of another run than a"));
  CHECK(files_of(folder / "b") == files);
  const auto forked = run_in(
      folder, launched({"--nproc", "2"}) + Words{"--resume", "a@8", "--run_dir", "c", "--max_steps", "12"} + more);
  INFO(forked.output);
  CHECK(forked.code == 0);
  CHECK(fs::exists(folder / "c/checkpoints/step-00000012"));
}

TEST_CASE("[R02] a second job with the checkpoint folder of one that trains is refused before it builds a model",
          "[share]") {
  testing::Launch first(2, {"--epochs", "500", "--pause_ms", "20", "--log_interval", "1"});
  REQUIRE(first.wait_for("step 3/"));
  const ScratchDirectory other;
  const auto second =
      run_in(other, kAlone + Words{"--run_dir", "", "--checkpoint_dir", first.folder() / "checkpoints"});
  INFO(second.output);
  CHECK(second.code == 69);
  CHECK_THAT(second.output,
             Catch::Contains(first.folder() / "checkpoints") && Catch::Contains("another job is using this folder") &&
                 Catch::Contains("give each job a checkpoint_dir of its own") && !Catch::Contains("model: "));
  const auto third =
      run_in(other, launched({"--nproc", "2"}) + Words{"--checkpoint_dir", first.folder() / "checkpoints"});
  INFO(third.output);
  CHECK(third.code == 69);
  CHECK_THAT(third.output,
             Catch::Contains("give each job a checkpoint_dir of its own") && !Catch::Contains("run folder"));
  const auto fourth = run_in(other, launched({"--nproc", "2", "--run-dir", first.folder() / "run"}));
  INFO(fourth.output);
  CHECK(fourth.code == 69);
  CHECK_THAT(fourth.output, Catch::Contains(first.folder() / "run") && Catch::Contains(": another job (process ") &&
                                Catch::Contains(" since ") && Catch::Contains("give each run its own --run-dir"));
  first.signal(SIGTERM);
  CHECK(first.finish().code == 143);
}

TEST_CASE("[R01] each run has a folder of its own, and runs/latest leads to the newest") {
  const ScratchDirectory folder;
  const Words quick{"--max_steps", "2", "--log_interval", "1", "--save_every", "-1"};
  std::set<std::string> before;
  for (const auto& words :
       {kAlone, kAlone, kSimulated, launched({"--nproc", "2"}), launched({"--hosts", "localhost:2"}),
        launched({"--nproc", "2"}) + Words{"--run_dir", "auto"}}) {
    const auto done = run_in(folder, words + quick);
    INFO(done.output);
    REQUIRE(done.code == 0);
    auto runs = entries_in(folder / "runs");
    CHECK(runs.erase("latest") == 1);
    REQUIRE(runs.size() == before.size() + 1);
    const auto made = *std::find_if(runs.begin(), runs.end(), [&](auto& name) { return !before.contains(name); });
    CHECK(std::regex_match(made, std::regex("[0-9]{8}-[0-9]{6}-rank_probe-[a-z]{4}")));
    CHECK(fs::read_symlink(folder / "runs/latest") == made);
    CHECK(fs::exists(folder / "runs/latest/metrics.jsonl"));
    CHECK_THAT(testing::read_text(folder / "runs/latest/config.toml"), Catch::Contains("run_dir = \"auto\""));
    CHECK_THAT(done.output, Catch::Contains("run folder: runs/" + made));
    before = runs;
  }
  CHECK(run_in(folder, {TROUPE_PROGRAM, "report"}).code == 0);
  CHECK(fs::exists(folder / "runs/latest/report.html"));
  CHECK_THAT(run_in(folder, {TROUPE_PROGRAM, "top", "--once"}).output, Catch::Contains("runs/latest"));
  const auto named = run_in(folder, kAlone + quick + Words{"--run_dir", "runs/latest"});
  CHECK(named.code == 2);
  CHECK_THAT(named.output, Catch::Contains("runs/latest") && Catch::Contains("link to the newest run"));
}

TEST_CASE("[R01] a launch that is refused leaves no folder behind, and runs/latest leads where it did") {
  const ScratchDirectory folder;
  const Words quick{"--max_steps", "2", "--save_every", "-1"};
  REQUIRE(run_in(folder, launched({"--nproc", "2"}) + quick).code == 0);
  const auto before = entries_in(folder / "runs");
  const auto latest = fs::read_symlink(folder / "runs/latest");
  for (const auto& launch : {launched({"--nproc", "2"}), launched({"--hosts", "localhost:2"})}) {
    const auto wrong = run_in(folder, launch + quick + Words{"--lr", "abc"});
    INFO(wrong.output);
    CHECK(wrong.code == 2);
    CHECK_THAT(wrong.output, Catch::Contains("lr: 'abc' is not a number"));
    CHECK(run_in(folder, launch + quick, {{"TROUPE_LRR", "1"}}).code == 2);
    CHECK(entries_in(folder / "runs") == before);
    CHECK(fs::read_symlink(folder / "runs/latest") == latest);
  }
  // What the program itself ends is a run, which has its logs; it has not begun to train.
  const auto ended = run_in(folder, launched({"--nproc", "2"}) + quick + Words{"--init_from", "nothing"});
  INFO(ended.output);
  CHECK(ended.code != 0);
  CHECK(entries_in(folder / "runs").size() == before.size() + 1);
  CHECK(fs::read_symlink(folder / "runs/latest") == latest);
}

TEST_CASE("[R01] a new run begins with what runs/latest leads to") {
  const ScratchDirectory folder;
  const Words quick{"--max_steps", "2"};
  REQUIRE(run_in(folder, kAlone + quick).code == 0);
  for (const auto& words : {kAlone, kSimulated, launched({"--nproc", "2"}), launched({"--hosts", "localhost:2"})}) {
    for (const auto* from : {"runs/latest/checkpoints", "runs/latest/checkpoints/latest"}) {
      const auto latest = fs::read_symlink(folder / "runs/latest");
      const auto done = run_in(folder, words + quick + Words{"--init_from", from});
      INFO(done.output);
      CHECK(done.code == 0);
      CHECK_THAT(done.output, Catch::Contains(from));
      CHECK(fs::read_symlink(folder / "runs/latest") != latest);
    }
  }
}

TEST_CASE("[R01] a folder runs/latest of an older version stays as it is") {
  const ScratchDirectory folder;
  fs::create_directories(folder / "runs/latest");
  testing::write_text(folder / "runs/latest/metrics.jsonl", "mine");
  const auto done = run_in(folder, launched({"--nproc", "1"}) + Words{"--save_every", "-1"});
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK_THAT(done.output, Catch::Contains("note: runs/latest is a run's folder of an older version") &&
                              Catch::Contains("stays as it is"));
  CHECK(testing::read_text(folder / "runs/latest/metrics.jsonl") == "mine");
  CHECK(entries_in(folder / "runs").size() == 2);
}

TEST_CASE("[R01] a second job with the run folder of one that trains is refused, and that one loses nothing") {
  testing::Launch first(2, {"--epochs", "500", "--pause_ms", "20", "--log_interval", "1"}, {});
  REQUIRE(first.wait_for("step 3/"));
  const auto folder = first.folder() / "run";
  const auto log = testing::read_text(folder + "/rank0.log"), facts = testing::read_text(folder + "/run.json");
  const ScratchDirectory other;
  for (const auto& words :
       {launched({"--nproc", "2", "--run-dir", folder}), kAlone + Words{"--run_dir", folder},
        kSimulated + Words{"--run_dir", folder}, launched({"--nproc", "1"}) + Words{"--run_dir", folder}}) {
    const auto second = run_in(other, words + Words{"--checkpoint_dir", other / "c"});
    INFO(second.output);
    CHECK(second.code == 69);
    CHECK_THAT(second.output,
               Catch::Contains(folder + ": another job (process " + std::to_string(first.pid()) + " on ") &&
                   Catch::Contains("give each run its own --run-dir"));
    CHECK(!fs::exists(other / "c/latest"));
  }
  CHECK(testing::read_text(folder + "/rank0.log").starts_with(log));
  CHECK(testing::read_text(folder + "/run.json") == facts);
  // Its journal is the one that it has open: a new coordinator takes the job over.
  ::kill(testing::process_of(TROUPE_PROGRAM, "coordinator", first.pid()), SIGKILL);
  CHECK(first.wait_for("the coordinator takes over at generation 1"));
  first.signal(SIGTERM);
  CHECK(first.finish().code == 143);
}

TEST_CASE("[R01] a run folder that holds another run's records is refused, unless the run is resumed") {
  const ScratchDirectory folder;
  const Words there{"--checkpoint_dir", folder / "c"};
  const auto run = folder / "run";
  REQUIRE(run_in(folder, kAlone + there + Words{"--run_dir", run}).code == 0);
  const auto files = files_of(run);
  const Words elsewhere{"--checkpoint_dir", folder / "d"};
  for (const auto& words : {kAlone + Words{"--run_dir", run}, kSimulated + Words{"--run_dir", run},
                            launched({"--nproc", "2", "--run-dir", run})}) {
    const auto done = run_in(folder, words + elsewhere);
    INFO(done.output);
    CHECK(done.code == 2);
    CHECK_THAT(done.output, Catch::Contains(run + ": it holds another run's metrics.jsonl; choose another --run_dir") &&
                                Catch::Contains("--resume latest") && !Catch::Contains("model: "));
  }
  auto now = files_of(run);
  for (const auto& [name, content] : files) {
    if (!name.ends_with("/lock")) CHECK(now[name] == content);
  }
  const auto resumed = run_in(
      folder, launched({"--nproc", "2", "--run-dir", run}) + there + Words{"--resume", "latest", "--epochs", "2"});
  INFO(resumed.output);
  CHECK(resumed.code == 0);
  CHECK(testing::read_text(run + "/metrics.jsonl").starts_with(files.at(run + "/metrics.jsonl")));
}

TEST_CASE("[R01] a run that is resumed goes on in its folder and as itself, however it is started", "[share]") {
  for (const auto& start : {kAlone, kSimulated, launched({"--nproc", "2"}), launched({"--hosts", "localhost:2"})}) {
    const ScratchDirectory folder;
    CAPTURE(start);
    REQUIRE(run_in(folder, start).code == 0);
    const auto first = folder.path() + "/runs/" + fs::read_symlink(folder / "runs/latest").string();
    CHECK(fs::exists(first + "/checkpoints/step-00000016"));
    REQUIRE(run_in(folder, start).code == 0);
    const auto second = folder.path() + "/runs/" + fs::read_symlink(folder / "runs/latest").string();
    REQUIRE(first != second);
    const auto untouched = files_of(first);
    const auto before = nlohmann::json::parse(testing::read_text(second + "/run.json"));

    const auto resumed = run_in(folder, start + Words{"--resume", "latest", "--epochs", "2"});
    INFO(resumed.output);
    REQUIRE(resumed.code == 0);
    CHECK_THAT(resumed.output, Catch::Contains("resume: goes on with runs/"));
    CHECK(files_of(first) == untouched);
    CHECK(entries_in(folder / "runs").size() == 3);
    CHECK(fs::exists(second + "/checkpoints/step-00000032"));
    const auto after = nlohmann::json::parse(testing::read_text(second + "/run.json"));
    CHECK(after["run_id"] == before["run_id"]);
    CHECK(after["started"] == before["started"]);
    CHECK(after["job_id"] != before["job_id"]);
    REQUIRE(after["lives"].size() == 2);
    CHECK(after["lives"][0] == before["lives"][0]);
    CHECK(manifest_of(second + "/checkpoints/step-00000032")["metadata"]["run"] == before["run_id"]);

    const auto named = fs::path(first).filename().string();
    CHECK(run_in(folder, start + Words{"--resume", named + "@16", "--epochs", "2"}).code == 0);
    CHECK(fs::exists(first + "/checkpoints/step-00000032"));
    const auto nothing = run_in(folder, start + Words{"--resume", named + "@17", "--epochs", "2"});
    CHECK(nothing.code == 2);
    CHECK_THAT(nothing.output, Catch::Contains("no checkpoint of step 17"));
    const auto complete = run_in(folder, start + Words{"--resume", "auto"});
    CHECK(complete.code == 0);
    CHECK(entries_in(folder / "runs").size() == 3);
  }
}

TEST_CASE("[R04] a program's run_dir is the launcher's, from wherever it is given; the launcher's own flag wins") {
  const ScratchDirectory folder;
  testing::write_text(folder / "train.toml", "[run]\nrun_dir = \"file\"\n");
  const Words quick{"--max_steps", "2", "--log_interval", "1", "--save_every", "-1"};
  const auto check = [&](const Words& words, const Variables& variables, const std::string& expected) {
    CAPTURE(words, expected);
    const auto done = run_in(folder, words + quick, variables);
    INFO(done.output);
    REQUIRE(done.code == 0);
    for (const auto* name : {"/metrics.jsonl", "/run.json", "/rank0.log", "/rank1.log"})
      CHECK(fs::exists(folder.path() + "/" + expected + name));
    CHECK_FALSE(fs::exists(folder / "runs"));
    fs::remove_all(folder.path() + "/" + expected);
  };
  check(launched({"--nproc", "2"}) + Words{"--config", "train.toml"}, {}, "file");
  check(launched({"--nproc", "2"}) + Words{"--config", "train.toml"}, {{"TROUPE_RUN_DIR", "variable"}}, "variable");
  check(launched({"--nproc", "2"}) + Words{"--config", "train.toml", "--run-dir", "flag"}, {}, "flag");
  check(launched({"--hosts", "localhost:2"}) + Words{"--run_dir", "flag"}, {}, "flag");
  check(launched({"--nproc", "2", "--run-dir", "ours"}) + Words{"--run_dir", "flag"}, {}, "ours");
  check(launched({"--nproc", "2", "--run-dir", "ours"}) + Words{"--config", "train.toml"}, {}, "ours");
}

TEST_CASE("[R01] checkpoints and saves of two runs bear two names, however these are started") {
  const ScratchDirectory folder;
  std::set<std::string> jobs, attempts;
  int runs = 0;
  for (const auto& words : {kAlone, kAlone, kSimulated, kSimulated,
                            launched({"--nnodes", "1", "--nproc-per-node", "1", "--master-port", port_for(2)}),
                            launched({"--nnodes", "1", "--nproc-per-node", "1", "--master-port", port_for(2)})}) {
    const auto checkpoints = folder / std::to_string(++runs);
    const auto done = run_in(folder, words + Words{"--checkpoint_dir", checkpoints});
    INFO(done.output);
    REQUIRE(done.code == 0);
    const auto manifest = manifest_of(checkpoints + "/step-00000016");
    jobs.insert(manifest["metadata"]["job"].get<std::string>());
    attempts.insert(manifest["attempt"].get<std::string>());
  }
  CHECK(jobs.size() == 6);
  CHECK(attempts.size() == 6);
}

TEST_CASE("[R06] the same command on two nodes meets by a host's name, and is one run in one folder") {
  const ScratchDirectory folder;
  const auto node = [&](const std::string& number) {
    return start_in(folder.path(),
                    launched({"--nnodes", "2", "--node-rank", number, "--nproc-per-node", "1", "--insecure-network",
                              "--master-addr", "localhost", "--master-port", port_for(1)}));
  };
  auto one = node("1");  // before there is anything to find
  auto zero = node("0");
  const auto done = zero.finish(), other = one.finish();
  INFO(done.output << other.output);
  CHECK(done.code == 0);
  CHECK(other.code == 0);
  CHECK(entries_in(folder / "runs").size() == 2);
  for (const char* file : {"rank0.log", "rank1.log", "metrics.jsonl"})
    CHECK(fs::exists(folder / "runs/latest/" + file));
}

TEST_CASE("[R06] a name is taken wherever an address is: a host list, Slurm's nodes, torchrun's master") {
  const ScratchDirectory folder;
  const Words quick{"--max_steps", "2", "--save_every", "-1"};
  const auto hosts = run_in(folder, launched({"--hosts", "localhost:2", "--address", "localhost"}) + quick);
  INFO(hosts.output);
  CHECK(hosts.code == 0);
  const auto slurm =
      run_in(folder, launched({"--slurm", "--nproc-per-node", "2", "--master-port", port_for(3)}) + quick,
             {{"SLURM_JOB_ID", "1"},
              {"SLURM_JOB_NODELIST", "localhost"},
              {"SLURM_TASKS_PER_NODE", "1"},
              {"SLURM_NODEID", "0"},
              {"SLURM_PROCID", "0"},
              {"SLURM_LOCALID", "0"}});
  INFO(slurm.output);
  CHECK(slurm.code == 0);
  const auto port = port_for(4);
  auto zero = start_in(folder.path(), kProbe + quick, torchrun(0, port, 0));
  auto one = start_in(folder.path(), kProbe + quick, torchrun(1, port, 0));
  CHECK(zero.finish().code == 0);
  CHECK(one.finish().code == 0);
}

TEST_CASE("[R06] a name is its IPv4 address; IPv6 and a name that nobody knows are refused by name") {
  CHECK(ipv4_address_of("localhost") == "127.0.0.1");
  CHECK(ipv4_address_of("127.0.0.3") == "127.0.0.3");
  CHECK(local_address_towards("localhost", 22) == "127.0.0.1");
  for (const char* address : {"::1", "[::1]", "fd00::7"})
    CHECK_THROWS_WITH(ipv4_address_of(address), Catch::Contains(address) && Catch::Contains("only an IPv6 address"));
  CHECK_THROWS_WITH(ipv4_address_of("no-such-host.invalid"), Catch::Contains("no-such-host.invalid"));

  const ScratchDirectory folder;
  for (const auto& flags : {Words{"--nnodes", "1", "--master-addr", "::1"},
                            Words{"--hosts", "localhost:2", "--address", "::1"}, Words{"--hosts", "[fd00::1]:2"}}) {
    const auto done = run_in(folder, launched(flags));
    INFO(done.output);
    CHECK(done.code == 2);
    CHECK(testing::count_of(done.output, "\n") == 1);
    CHECK_THAT(done.output, Catch::Contains("only an IPv6 address, and ranks use IPv4"));
  }
  CHECK(!fs::exists(folder / "runs"));
}
