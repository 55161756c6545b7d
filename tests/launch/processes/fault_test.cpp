// Faults by their number in docs/faults.md, as far as they need processes and not hosts of their own (tests/net has
// those).
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "launch/run/run_socket.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"
#include "tests/share.hpp"
#include "tests/support/count_of.hpp"
#include "tests/support/recovery_run.hpp"
#include "tests/support/sanitized.hpp"

using namespace troupe;
using namespace std::chrono_literals;
using testing::check_bits;
using testing::Launch;
using testing::pid_said_by;
using testing::processes_of;
using testing::undisturbed;
using Run = testing::RecoveryRun;

namespace {

std::string facts_of(pid_t pid, const char* file) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/" + file);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// The process of the folder whose environment has this entry; -1: none.
pid_t process_with(const std::string& folder, const std::string& entry) {
  for (const auto pid : processes_of(folder)) {
    if (facts_of(pid, "environ").find(entry + '\0') != std::string::npos) return pid;
  }
  return -1;
}

pid_t coordinator_of(const Launch& launch) { return testing::process_of("troupe", "coordinator", launch.pid()); }

void check_one_life_each(const Run& run) {
  for (const auto& [rank, lives] : run.lives()) {
    INFO(rank);
    CHECK(lives == 1);
  }
}

const std::vector<std::string> kLong{"--probe_model", "norm", "--log_interval", "1", "--run_dir", "",
                                     "--pause_ms",    "20",   "--epochs",       "48"};

// Rank 1 is killed, and the job comes to its end with one recovery. Returns what it printed.
std::string loses_a_rank_and_goes_on(Launch& launch) {
  const auto rank = pid_said_by(launch.output(), "[rank 1] pid ");
  REQUIRE(rank > 0);
  ::kill(rank, SIGKILL);
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK(testing::recoveries_in(done.output).size() == 1);
  return done.output;
}

}  // namespace

TEST_CASE("[L05] fault 9: a rank that stands still for half a second is not replaced") {
  const Run run(4, {}, "", {"--pause_ms", "5"}, [](Launch& launch) {
    REQUIRE(launch.wait_for("step 8/"));
    const auto rank = pid_said_by(launch.output(), "[rank 1] pid ");
    REQUIRE(rank > 0);
    ::kill(rank, SIGSTOP);
    std::this_thread::sleep_for(500ms);
    ::kill(rank, SIGCONT);
  });
  INFO(run.output);
  CHECK(run.recoveries().empty());
  check_one_life_each(run);
  check_bits(run, undisturbed());
}

TEST_CASE(
    "[L04] fault 10: a coordinator that stands still is replaced after three seconds, and stops and accuses nobody",
    "[share]") {
  Launch launch(2, kLong, {});
  REQUIRE(launch.wait_for("step 10/"));
  const auto coordinator = coordinator_of(launch);
  REQUIRE(coordinator > 0);
  ::kill(coordinator, SIGSTOP);
  REQUIRE(launch.wait_for("troupe: the coordinator has been silent for 3 s and is killed"));
  REQUIRE(launch.wait_for("troupe: the coordinator takes over at generation 1"));
  const auto output = loses_a_rank_and_goes_on(launch);
  CHECK_THAT(output, Catch::Contains("generation 2: 1 rank replaced") && !Catch::Contains("is silent"));
}

TEST_CASE(
    "[S4] fault 41: a coordinator that does not start again is tried again, on another port in the end, and the job "
    "goes on",
    "[share]") {
  std::string fault;
  for (int life = 1; life <= 3; ++life)
    fault += (life > 1 ? ";" : "") + std::string("slot=coordinator,step=0,at=journal,life=") + std::to_string(life);
  Launch launch(2, kLong, {}, {{"TROUPE_FAULT", fault}});
  REQUIRE(launch.wait_for("step 10/"));
  ::kill(coordinator_of(launch), SIGKILL);
  REQUIRE(launch.wait_for("troupe: the coordinator did not start (signal 9"));
  REQUIRE(launch.wait_for("the ranks keep training, the next try is in 400 ms"));
  REQUIRE(launch.wait_for("troupe: the coordinator listens on port "));
  loses_a_rank_and_goes_on(launch);  // the replacement finds the new port, too
}

TEST_CASE(
    "[S5] fault 42: a run folder that vanishes costs the journal, and the ranks tell the next coordinator who trains",
    "[share]") {
  Launch launch(2, kLong, {});
  REQUIRE(launch.wait_for("step 10/"));
  std::filesystem::rename(launch.folder() / "run", launch.folder() / "away");
  ::kill(coordinator_of(launch), SIGKILL);
  REQUIRE(launch.wait_for("troupe: warning: the coordinator takes over without its journal"));
  REQUIRE(launch.wait_for("troupe: the coordinator takes over at generation 1, as reported by a rank"));
  loses_a_rank_and_goes_on(launch);
}

TEST_CASE("[L04] fault 11: a coordinator killed at any write of its journal takes the job over without a lost step",
          "[share]") {
  // Step 1: the first membership, 2: that of the recovery; 0: what it writes when it starts.
  const std::string fault = GENERATE(as<std::string>{}, "slot=coordinator,step=0,at=journal",  //
                                     "slot=coordinator,step=0,at=journalled",                  //
                                     "slot=coordinator,step=1,at=journal",                     //
                                     "slot=coordinator,step=1,at=journalled",                  //
                                     "slot=coordinator,step=2,at=journal",                     //
                                     "slot=coordinator,step=2,at=journalled",                  //
                                     "slot=coordinator,step=1,at=journalled;slot=coordinator,step=0,at=journal,life=1");
  INFO(fault);
  const Run run(4, {}, fault + ";slot=2,step=11,at=forward");
  INFO(run.output);
  CHECK_THAT(run.output, Catch::Contains("the coordinator died (signal 9"));
  // Killed between writing generation 2 down and announcing it, it could not say so any more.
  CHECK(run.recoveries().size() == (fault == "slot=coordinator,step=2,at=journalled" ? 0 : 1));
  for (const auto& [rank, lives] : run.lives()) CHECK(lives == (rank == "rank 2" ? 2 : 1));
  check_bits(run, undisturbed());
}

TEST_CASE("[L04] fault 12: a second coordinator for the same job is refused, and the job does not notice") {
  const Run run(4, {}, "", {"--pause_ms", troupe::testing::kAddressSanitizer ? "400" : "20"}, [](Launch& launch) {
    REQUIRE(launch.wait_for("step 5/"));
    const auto words = facts_of(coordinator_of(launch), "cmdline");
    auto options = nlohmann::json::parse(words.substr(words.find('{'), words.rfind('}') + 1 - words.find('{')));
    options["port"] = 0;
    options["keys_on_stdin"] = false;
    const auto second = testing::RunningProcess({TROUPE_PROGRAM, "coordinator", options.dump()}).finish();
    CHECK(second.code == 69);
    CHECK_THAT(second.output, Catch::Contains("another coordinator holds this journal"));
  });
  INFO(run.output);
  CHECK(run.recoveries().empty());
  check_bits(run, undisturbed());
}

namespace {

// Ports of the data connections of rank processes, by /proc: of sockets that listen and of those that are connected.
std::set<int> ports_of_ranks(const Launch& launch) {
  std::set<std::string> sockets;
  for (const auto pid : processes_of(launch.folder().path())) {
    if (!facts_of(pid, "cmdline").starts_with(TROUPE_RANK_PROBE)) continue;
    std::error_code gone;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", gone)) {
      const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
      if (target.starts_with("socket:[")) sockets.insert(target.substr(8, target.size() - 9));
    }
  }
  std::set<int> ports;
  std::ifstream table("/proc/net/tcp");
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::string word, local, inode;
    for (int i = 0; i < 10 && words >> word; ++i) (i == 1 ? local : inode) = word;
    if (sockets.contains(inode)) ports.insert(std::stoi(local.substr(local.find(':') + 1), nullptr, 16));
  }
  return ports;
}

// Whether the port takes a connection; it is told some nonsense then.
bool knock(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool open = ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  const std::string words(4096, '\xff');
  if (open) (void)!::send(fd, words.data(), words.size(), MSG_NOSIGNAL);
  ::close(fd);
  return open;
}

}  // namespace

TEST_CASE("[L04] fault 43: a launcher that stands still holds up no rank") {
  Launch launch(2, {"--epochs", "100000", "--log_interval", "1"}, {});
  REQUIRE(launch.wait_for("step 8/"));
  const auto records = [&] { return testing::proc_file(launch.folder() / "run/metrics.jsonl"); };
  const auto count = [&] {
    const auto text = records();
    return std::count(text.begin(), text.end(), '\n');
  };
  launch.signal(SIGSTOP);
  const auto before = count();
  CHECK(launch.wait_until([&] { return count() > before + 100; }));
  launch.signal(SIGCONT);
  launch.signal(SIGINT);
  const auto done = launch.finish();
  CHECK(done.code == 130);
  CHECK_THAT(done.output, !Catch::Contains("interrupted") && !Catch::Contains("killed"));
}

TEST_CASE(
    "[L05] fault 19: a stranger who knocks at the data ports in the middle of a job is refused, and no bit changes") {
  const std::vector<std::string> over_tcp{"--backend", "gloo", "--pause_ms", "10", "--batch_size", "12"};
  const Run calm(3, {}, "", over_tcp);
  int knocks = 0, open = 0;
  const Run run(3, {}, "", over_tcp, [&](Launch& launch) {
    for (const char* step : {"step 5/", "step 10/", "step 15/", "step 20/"}) {
      REQUIRE(launch.wait_for(step));
      for (const int port : ports_of_ranks(launch)) {
        ++knocks;
        open += knock(port) ? 1 : 0;
      }
    }
  });
  INFO(run.output);
  CHECK(knocks >= 4 * 12);  // two communicators, two connections of each rank on each
  CHECK(open == 0);
  CHECK(run.recoveries().empty());
  check_bits(run, calm);
}

TEST_CASE("[L05] fault 23: a rank without memory aborts its step and ends the job with rank, step, cause and remedy") {
  NOT_UNDER_ADDRESS_SANITIZER("it reserves more address space than the limit");
  const std::string how = GENERATE(as<std::string>{}, "new", "tensor");
  INFO(how);
  Launch launch(3, {"--batch_size", "12", "--fail_rank", "1", "--fail_step", "5", "--fail_how", how}, {});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 1);
  CHECK_THAT(done.output,
             Catch::Contains("rank 1, compute, step 5: out of memory: ") && Catch::Contains("lower batch_size"));
  CHECK(processes_of(launch.folder().path()).empty());
}

namespace {

/// A limit for the processes that are put into it.
class ControlGroup {
 public:
  ControlGroup(const std::string& controller, const std::string& value) {
    const std::string first = controller == "memory" ? "memory.limit_in_bytes" : controller + ".max";
    for (const auto& [root, name] : {std::pair{"/sys/fs/cgroup/" + controller, first},
                                     std::pair{std::string("/sys/fs/cgroup"), controller + ".max"}}) {
      const auto folder = root + "/troupe-test-" + std::to_string(::getpid());
      std::error_code failure;
      if (!std::filesystem::create_directory(folder, failure)) continue;
      folder_ = folder;
      const auto limit = folder + "/" + name;
      if (std::filesystem::exists(limit) && (std::ofstream(limit) << value).flush()) return;
      std::filesystem::remove(folder, failure);
      folder_.clear();
    }
  }
  ~ControlGroup() {
    std::error_code failure;
    for (int i = 0; i < 100 && !folder_.empty() && !std::filesystem::remove(folder_, failure); ++i)
      std::this_thread::sleep_for(50ms);
  }
  ControlGroup(const ControlGroup&) = delete;
  bool there() const { return !folder_.empty(); }
  std::string processes() const { return folder_ + "/cgroup.procs"; }
  bool hold(pid_t pid) const { return bool((std::ofstream(processes()) << pid).flush()); }

 private:
  std::string folder_;
};

/// A small job that a shell starts after it has limited itself; or whose ranks do.
testing::Finished limited(const testing::ScratchDirectory& folder, const std::string& before,
                          const std::string& before_rank, const std::string& backend) {
  std::vector<std::string> words{
      "/bin/sh", "-c",        before + " exec \"$@\"", "sh", TROUPE_PROGRAM, "launch", "--nproc",
      "3",       "--run-dir", folder / "run"};
  if (!before_rank.empty()) words.insert(words.end(), {"/bin/sh", "-c", before_rank + " exec \"$@\"", "sh"});
  words.insert(words.end(), {TROUPE_RANK_PROBE, "--backend", backend, "--batch_size", "12", "--epochs", "1",
                             "--run_dir", "", "--checkpoint_dir", folder / "checkpoints"});
  auto done = testing::RunningProcess(words).finish();
  CHECK(done.code >= 0);  // it ended of itself
  // Those of a launcher that could not go on end with it, by the kernel's hand.
  for (int i = 0; i < 100 && !processes_of(folder.path()).empty(); ++i) std::this_thread::sleep_for(50ms);
  CHECK(processes_of(folder.path()).empty());
  return done;
}

}  // namespace

TEST_CASE("[L05] fault 23: a rank that the kernel kills for want of memory is replaced, and the likely cause is told") {
  const ControlGroup limit("memory", std::to_string(256 << 20));
  if (!limit.there()) {
    WARN("NOT RUN: no memory limit can be set here (control groups, as root)");
    return;
  }
  const Run run(4, {}, "", {"--fail_rank", "1", "--fail_step", "12", "--fail_how", "grow", "--pause_ms", "10"},
                [&](Launch& launch) {
                  REQUIRE(launch.wait_for("step 5/"));
                  REQUIRE(limit.hold(pid_said_by(launch.output(), "[rank 1] pid ")));
                });
  INFO(run.output);
  CHECK_THAT(run.output,
             Catch::Contains("signal 9, which this job did not send: perhaps out of memory, see dmesg on its host"));
  CHECK(run.recoveries().size() == 1);
  check_bits(run, undisturbed());
}

TEST_CASE(
    "[L05] fault 25: a loader that throws on one rank ends the job with its text, its rank and nobody left waiting") {
  Launch launch(3, {"--batch_size", "12", "--fail_rank", "1", "--fail_how", "load_throw"}, {});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 1);
  CHECK_THAT(done.output, Catch::Contains("the probe's disk is gone") && Catch::Contains("rank 1"));
  CHECK(processes_of(launch.folder().path()).empty());
}

TEST_CASE("[L05] fault 25: a loader that stands still on one rank is waited for", "[share]") {
  const Run run(4, {}, "", {"--fail_rank", "1", "--fail_how", "load_stall"});
  INFO(run.output);
  CHECK(run.recoveries().empty());
  check_one_life_each(run);
  check_bits(run, undisturbed());
}

TEST_CASE("[L05] fault 25: a loader that stands still for longer than the deadline is named, and the same ranks go on",
          "[share]") {
  const Run run(4, {}, "", {"--fail_rank", "1", "--fail_how", "load_stall", "--collective_timeout", "2"});
  INFO(run.output);
  CHECK_THAT(run.output,
             Catch::Contains("is interrupted: ") && Catch::Contains("rank 1 did not arrive within 2000 ms"));
  CHECK_FALSE(run.recoveries().empty());
  check_one_life_each(run);
  check_bits(run, undisturbed());
}

TEST_CASE("[L05] fault 31: a flipped bit in one of three replicas is found and healed once") {
  const Run run(
      3, {}, "",
      {"--batch_size", "12", "--verify_every", "4", "--fail_rank", "1", "--fail_step", "9", "--fail_how", "flip"});
  INFO(run.output);
  CHECK_THAT(run.output,
             Catch::Contains(
                 "step 11: rank 1 holds different parameters from ranks 0, 2 (localhost): healed from ranks 0, 2"));
  CHECK(run.output.find("holds different parameters") == run.output.rfind("holds different parameters"));
  CHECK(run.recoveries().empty());
}

TEST_CASE(
    "[L05] fault 31: of two replicas that differ none is right: the job ends with 65, unless rank 0 is to be trusted") {
  const bool trust = GENERATE(true, false);
  Launch launch(2,
                {"--verify_every", "4", "--fail_rank", "1", "--fail_step", "9", "--fail_how", "flip", "--on_divergence",
                 trust ? "rank_0" : "heal"},
                {});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == (trust ? 0 : 65));
  CHECK_THAT(done.output,
             Catch::Contains("rank 1 holds different parameters from rank 0 (localhost)") &&
                 Catch::Contains(trust ? "healed from rank 0, rank 0's side" : "so it is unknown which is right"));
}

TEST_CASE("[L05] fault 32: a rank three times as slow as the others is named within 20 steps, and stays") {
  const Run run(4, {}, "", {"--pause_ms", "20", "--fail_rank", "2", "--fail_step", "8", "--fail_how", "slow"});
  INFO(run.output);
  const std::regex line(R"(step (\d+): rank 2 \(localhost\) is slow: .*most of it in forward)");
  std::smatch found;
  REQUIRE(std::regex_search(run.output, found, line));
  CHECK(std::stoi(found[1]) <= 8 + 20);
  CHECK_THAT(run.output, Catch::Contains("slow: rank 2 (forward "));
  CHECK(run.recoveries().empty());
  check_one_life_each(run);
  check_bits(run, undisturbed());
}

TEST_CASE(
    "[L05] fault 33: with a node agent killed its ranks are gone, its host is left out, and nothing is orphaned") {
  testing::ScratchDirectory folder;
  std::ofstream(folder / "hosts") << "a slots=3 address=127.0.0.1\nb slots=1 address=127.0.0.2\n";
  testing::RunningProcess launch({TROUPE_PROGRAM,
                                  "launch",
                                  "--hosts",
                                  folder / "hosts",
                                  "--run-dir",
                                  folder / "run",
                                  TROUPE_RANK_PROBE,
                                  "--probe_model",
                                  "norm",
                                  "--batch_size",
                                  "12",
                                  "--log_interval",
                                  "1",
                                  "--run_dir",
                                  "",
                                  "--pause_ms",
                                  "20",
                                  "--epochs",
                                  "4",
                                  "--checkpoint_dir",
                                  folder / "checkpoints"});
  REQUIRE(launch.wait_for("step 10/"));
  const auto agent = testing::process_of("troupe", R"("host":"b")", launch.pid());
  const auto rank = pid_said_by(launch.output(), "[rank 3] pid ");
  REQUIRE(agent > 0);
  REQUIRE(rank > 0);
  ::kill(agent, SIGKILL);
  REQUIRE(launch.wait_for("shrinks from 4 to 3 ranks"));
  CHECK(facts_of(rank, "cmdline").empty());  // gone, or a zombie that nobody has waited for yet
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK_THAT(done.output,
             Catch::Contains("host b: its agent ended (signal 9") && Catch::Contains("the agent of b is gone"));
  CHECK(processes_of(folder.path()).empty());
}

namespace {

// A job on hosts that are all this machine, as a host file has them.
struct HostsJob {
  HostsJob(const std::string& hosts, const std::vector<std::string>& flags, const std::vector<std::string>& settings) {
    std::ofstream(folder / "hosts") << hosts;
    std::vector<std::string> words{TROUPE_PROGRAM, "launch", "--hosts", folder / "hosts", "--run-dir", run()};
    words.insert(words.end(), flags.begin(), flags.end());
    for (const auto& word : program(folder / "checkpoints")) words.push_back(word);
    words.insert(words.end(), settings.begin(), settings.end());
    launch.emplace(words);
  }
  static std::vector<std::string> program(const std::string& checkpoints) {
    return {TROUPE_RANK_PROBE,
            "--probe_model",
            "ours",
            "--batch_size",
            "12",
            "--log_interval",
            "1",
            "--pause_ms",
            "10",
            "--epochs",
            "6",
            "--checkpoint_dir",
            checkpoints};
  }
  std::string run() const { return folder / "run"; }
  auto drain(const std::string& host) const {
    return testing::RunningProcess({TROUPE_PROGRAM, "drain", host, run()}).finish();
  }
  void tell_agent(const std::string& host, int signal) {
    const auto agent = testing::process_of("troupe", R"("host":")" + host + '"', launch->pid());
    REQUIRE(agent > 0);
    ::kill(agent, signal);
  }
  // Each step of the job is in the records once, and in order.
  void check_steps() const {
    std::ifstream in(run() + "/metrics.jsonl");
    std::int64_t next = 1;
    for (std::string line; std::getline(in, line);) {
      const auto record = nlohmann::json::parse(line);
      if (record["kind"] == "train") CHECK(record["step"].get<std::int64_t>() == next++);
    }
    CHECK(next > 100);
  }

  testing::ScratchDirectory folder;
  std::optional<testing::RunningProcess> launch;
};

constexpr const char* kHosts =
    "a slots=2 address=127.0.0.1\nb slots=1 address=127.0.0.2\nc slots=1 address=127.0.0.3\n";

}  // namespace

TEST_CASE(
    "[L04] fault 44: a host that is to leave does so between two steps, and the others go on without a step twice") {
  const std::vector<std::string> strategy =
      GENERATE(std::vector<std::string>{"--strategy", "ddp"}, std::vector<std::string>{"--strategy", "fsdp"},
               std::vector<std::string>{"--strategy", "diloco", "--sync_every", "5"});
  if (!testing::in_share(0.5, "leaves " + strategy[1])) return;
  HostsJob job(kHosts, {}, strategy);
  REQUIRE(job.launch->wait_for("step 10/"));
  job.tell_agent("b", SIGTERM);
  REQUIRE(job.launch->wait_for("rank 2 on b leaves (SIGTERM): shrinks from 4 to 3 ranks"));
  REQUIRE(job.launch->wait_for("step 50/"));
  job.tell_agent("a", SIGTERM);  // rank 0's, and its records
  const auto done = job.launch->finish();
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK_THAT(
      done.output,
      Catch::Contains("rank 0 on a leaves (SIGTERM)") && Catch::Contains(" to 1 rank at step"));  // at once, or not
  CHECK_THAT(done.output, !Catch::Contains("is interrupted") && !Catch::Contains("its agent ended"));
  job.check_steps();
  CHECK(processes_of(job.folder.path()).empty());
}

TEST_CASE("[L04] fault 44: what a job becomes that a host leaves has the bits of one that was planned to shrink there",
          "[share]") {
  const std::vector<std::string> strategy =
      GENERATE(std::vector<std::string>{"--strategy", "ddp"}, std::vector<std::string>{"--strategy", "fsdp"},
               // Without moments: a resumed replica takes rank 0's.
               std::vector<std::string>{"--strategy", "diloco", "--sync_every", "7", "--momentum", "0"});
  if (!testing::in_share(0.4, "leaves, bits " + strategy[1])) return;
  INFO(strategy[1]);
  HostsJob job(kHosts, {}, strategy);
  REQUIRE(job.launch->wait_for("step 10/"));
  job.tell_agent("b", SIGTERM);
  const auto done = job.launch->finish();
  INFO(done.output);
  REQUIRE(done.code == 0);
  std::smatch step;
  REQUIRE(std::regex_search(done.output, step, std::regex(R"(shrinks from 4 to 3 ranks at step (\d+))")));
  testing::ScratchDirectory folder;
  for (const bool shrunk : {false, true}) {
    std::vector<std::string> words{TROUPE_PROGRAM,     "launch",    "--nproc",
                                   shrunk ? "3" : "4", "--run-dir", folder / (shrunk ? "b" : "a")};
    for (const auto& word : HostsJob::program(folder / "checkpoints")) words.push_back(word);
    words.insert(words.end(), strategy.begin(), strategy.end());
    const auto more =
        shrunk ? std::vector<std::string>{"--resume", "latest"} : std::vector<std::string>{"--max_steps", step[1]};
    words.insert(words.end(), more.begin(), more.end());
    testing::RunningProcess launch(words);
    const auto ended = launch.finish();
    INFO(ended.output);
    REQUIRE(ended.code == 0);
  }
  const auto left = load_checkpoint(job.folder / "checkpoints", "latest").state,
             planned = load_checkpoint(folder / "checkpoints", "latest").state;
  CHECK(left.step == planned.step);
  REQUIRE(left.tensors.size() == planned.tensors.size());
  for (std::size_t i = 0; i < left.tensors.size(); ++i) {
    INFO(left.tensors[i].first);
    CHECK(left.tensors[i].first == planned.tensors[i].first);
    CHECK(left.tensors[i].second.equal(planned.tensors[i].second));
  }
}

TEST_CASE("[L04] fault 44: troupe drain lets a host leave, and says why it can't") {
  HostsJob job(kHosts, {}, {});
  REQUIRE(job.launch->wait_for("step 5/"));
  const auto unknown = job.drain("d");
  CHECK(unknown.code == 2);
  CHECK_THAT(unknown.output, Catch::Contains("the job has no such host: it has a, b, c"));
  const auto left = job.drain("c");
  CHECK(left.code == 0);
  CHECK_THAT(left.output, Catch::Contains("the ranks of c leave after their step"));
  REQUIRE(job.launch->wait_for("rank 3 on c leaves (troupe drain): shrinks from 4 to 3 ranks"));
  const auto done = job.launch->finish();
  INFO(done.output);
  CHECK(done.code == 0);
  job.check_steps();
  const auto over = job.drain("a");
  CHECK(over.code == 69);
  CHECK_THAT(over.output, Catch::Contains("no job of yours on this host has this folder"));
}

TEST_CASE("[L04] fault 44: a job whose last host is drained says once why it ends, what is saved and how to go on") {
  HostsJob job("a slots=1 address=127.0.0.1\nb slots=1 address=127.0.0.2\n", {}, {});
  REQUIRE(job.launch->wait_for("step 5/"));
  CHECK(job.drain("a").code == 0);
  REQUIRE(job.launch->wait_for("shrinks from 2 to 1 rank"));
  CHECK(job.drain("b").code == 0);
  const auto done = job.launch->finish();
  INFO(done.output);
  CHECK(done.code == 75);
  const auto saved = troupe::latest_step(job.folder / "checkpoints");
  REQUIRE(saved);
  CHECK(testing::count_of(done.output, "rank 0 on b leaves (troupe drain): 0 ranks left") == 1);
  CHECK_THAT(done.output, Catch::Contains("[rank 1] saved step " + std::to_string(*saved) + ": ") &&
                              Catch::Contains("troupe: the job ended: ") && !Catch::Contains("[rank 1] error: ") &&
                              Catch::Contains("--resume auto") && !Catch::Contains("--resume latest"));
}

TEST_CASE("[L04] [C02] fault 44: the last rank of a drained job says that its step could not be saved") {
  HostsJob job("a slots=1 address=127.0.0.1\nb slots=1 address=127.0.0.2\n", {}, {});
  REQUIRE(job.launch->wait_for("step 5/"));
  CHECK(job.drain("a").code == 0);
  REQUIRE(job.launch->wait_for("shrinks from 2 to 1 rank"));
  std::filesystem::rename(job.folder / "checkpoints", job.folder / "away");
  std::ofstream(job.folder / "checkpoints") << "no folder";
  CHECK(job.drain("b").code == 0);
  const auto done = job.launch->finish();
  INFO(done.output);
  CHECK(done.code == 75);
  CHECK_THAT(done.output,
             Catch::Contains("[rank 1] warning: the checkpoint of step ") && Catch::Contains(" was not saved: "));
}

TEST_CASE("[L04] fault 44: a job whose name for troupe drain another process has taken goes on without that") {
  testing::ScratchDirectory folder;
  const RunSocket taken(folder.path());
  std::vector<std::string> words{TROUPE_PROGRAM, "launch", "--hosts", "localhost:2", "--run-dir", folder.path()};
  for (const auto& word : HostsJob::program(folder / "checkpoints")) words.push_back(word);
  words.insert(words.end(), {"--max_steps", "3"});
  const auto done = testing::RunningProcess(words).finish();
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK_THAT(done.output, Catch::Contains("troupe: warning: troupe drain will not reach this job"));
}

TEST_CASE(
    "[L04] fault 44: a notice during a recovery, another leave or a save waits for its end; a spare takes the place") {
  HostsJob job(
      "a slots=1 address=127.0.0.1\nb slots=1 address=127.0.0.2\n"
      "c slots=1 address=127.0.0.3\nd slots=1 address=127.0.0.4\n",
      {"--spares", "1"}, {"--save_every", "5", "--strategy", "fsdp"});
  REQUIRE(job.launch->wait_for("step 10/"));
  const auto rank = pid_said_by(job.launch->output(), "[rank 0] pid ");
  REQUIRE(rank > 0);
  ::kill(rank, SIGKILL);
  job.tell_agent("b", SIGTERM);
  job.tell_agent("c", SIGTERM);
  const auto done = job.launch->finish();
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK_THAT(done.output, Catch::Contains("rank 1 on b leaves (SIGTERM)") && Catch::Contains("on c leaves (SIGTERM)") &&
                              Catch::Contains("1 rank replaced") && Catch::Contains("shrinks from 4 to 3 ranks"));
  CHECK(processes_of(job.folder.path()).empty());
}

TEST_CASE("[L04] fault 44: a job that can't go on without a host saves and ends") {
  SECTION("too few ranks would be left") {
    HostsJob job(kHosts, {"--min-ranks", "4"}, {});
    REQUIRE(job.launch->wait_for("step 10/"));
    job.tell_agent("b", SIGTERM);
    const auto done = job.launch->finish();
    INFO(done.output);
    CHECK(done.code == 75);
    CHECK_THAT(done.output,
               Catch::Contains("rank 2 on b leaves (SIGTERM): 3 ranks left") && Catch::Contains("--resume auto"));
    CHECK_FALSE(std::filesystem::is_empty(job.folder / "checkpoints"));
  }
  SECTION("the strategy's number of ranks is fixed") {
    HostsJob job(kHosts, {}, {"--strategy", "fsdp", "--fsdp_mode", "hybrid_shard", "--fsdp_shard_size", "2"});
    REQUIRE(job.launch->wait_for("step 10/"));
    job.tell_agent("b", SIGTERM);
    const auto done = job.launch->finish();
    INFO(done.output);
    CHECK(done.code == 75);
    CHECK_THAT(done.output, Catch::Contains("the others can't go on without them") && Catch::Contains("--resume auto"));
    CHECK_FALSE(std::filesystem::is_empty(job.folder / "checkpoints"));
  }
}

TEST_CASE("[L05] fault 36: a spare that dies idle is noticed, and the next death shrinks the job") {
  const Run run(3, {"--spares", "1", "--max-restarts", "0"}, "", {"--batch_size", "12", "--pause_ms", "20"},
                [](Launch& launch) {
                  REQUIRE(launch.wait_for("step 5/"));
                  const auto spare = process_with(launch.folder().path(), "TROUPE_SPARE=1");
                  REQUIRE(spare > 0);
                  ::kill(spare, SIGKILL);
                  REQUIRE(launch.wait_for("the process in slot 3 is gone"));
                  const auto rank = pid_said_by(launch.output(), "[rank 1] pid ");
                  REQUIRE(rank > 0);
                  ::kill(rank, SIGKILL);
                });
  INFO(run.output);
  CHECK_THAT(run.output, Catch::Contains("shrinks from 3 to 2 ranks"));
  CHECK(run.recoveries().size() == 1);
}

TEST_CASE("[L05] fault 36: when all spares are used up the job shrinks") {
  const Run run(3, {"--spares", "1", "--max-restarts", "0"}, "slot=1,step=9,at=forward;slot=2,step=15,at=forward",
                {"--batch_size", "12"});
  INFO(run.output);
  CHECK_THAT(run.output, Catch::Contains("generation 2: 1 rank replaced") &&
                             Catch::Contains("generation 3: shrinks from 3 to 2 ranks"));
}

TEST_CASE("[L05] fault 38: with too few file descriptors a job ends with an error that says so", "[share]") {
  NOT_UNDER_ADDRESS_SANITIZER("UndefinedBehaviorSanitizer needs a pipe to look at memory");
  int failed = 0;
  const auto judge = [&failed](const testing::Finished& done) {
    INFO(done.output);
    if (done.code == 0) return;
    ++failed;
    CHECK_THAT(done.output, Catch::Contains("Too many open files"));
    CHECK_THAT(done.output, Catch::Contains("ulimit -n"));
  };
  for (const int files : {15, 22, 23}) {  // the launcher needs some 24 for three ranks
    INFO(files);
    const testing::ScratchDirectory folder;
    judge(limited(folder, "ulimit -n " + std::to_string(files) + ";", "", "auto"));
  }
  CHECK(failed > 0);
  failed = 0;
  for (const auto& [backend, files] :
       {std::pair{"gloo", 10}, std::pair{"gloo", 12}, std::pair{"gloo", 14}, std::pair{"auto", 12}}) {  // a rank, 20
    INFO(files);
    const testing::ScratchDirectory folder;
    judge(limited(folder, "", "ulimit -n " + std::to_string(files) + ";", backend));
  }
  CHECK(failed > 0);
}

TEST_CASE("[L05] fault 38: with too few threads a job ends with an error that says so") {
  int failed = 0;
  for (const int tasks : {4, 10, 16, 20, 24, 30}) {  // it needs some 40
    INFO(tasks);
    const ControlGroup limit("pids", std::to_string(tasks));
    if (!limit.there()) {
      WARN("NOT RUN: no limit of processes can be set here (control groups, as root)");
      return;
    }
    const testing::ScratchDirectory folder;
    const auto done = limited(folder, "echo $$ > " + limit.processes() + ";", "", "auto");
    INFO(done.output);
    if (done.code == 0) continue;
    ++failed;
    CHECK_THAT(done.output,
               Catch::Contains("Resource temporarily unavailable") || Catch::Contains("a library ended the process"));
    CHECK_THAT(done.output, Catch::Contains("raise the limit of processes"));
  }
  CHECK(failed > 0);
}

TEST_CASE("[L05] fault 38: where no port is left a job ends with an error that says so") {
  if (testing::RunningProcess({"/usr/bin/unshare", "--net", "true"}).finish().code != 0) {
    WARN("NOT RUN: ports can be limited in a network namespace only, and that needs root");
    return;
  }
  for (const auto* range : {"50000 50004", "50000 50010"}) {
    INFO(range);
    const testing::ScratchDirectory folder;
    const auto script = folder / "limited.sh";
    std::ofstream(script) << "ip link set lo up; echo '" << range << "' > /proc/sys/net/ipv4/ip_local_port_range\n"
                          << R"(exec "$@")";
    const auto done = limited(folder, "exec unshare --net /bin/sh " + script + R"( "$@";)", "", "gloo");
    INFO(done.output);
    CHECK(done.code == 69);
    // The rank that comes too late either listens, or connects to the coordinator.
    CHECK_THAT(done.output,
               Catch::Contains("Address already in use") || Catch::Contains("Cannot assign requested address"));
    CHECK_THAT(done.output, Catch::Contains("ip_local_port_range"));
  }
}

TEST_CASE("[L05] fault 37: a clock that jumps by an hour, forwards and back, changes nothing") {
  const std::string library = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
  if (!std::filesystem::exists(library)) {
    WARN("NOT RUN: there is no libfaketime here (Debian package faketime)");
    return;
  }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  WARN("NOT RUN: libfaketime and a sanitizer's runtime both have to be loaded first");
  return;
#endif
  const auto& reference = undisturbed();
  testing::ScratchDirectory folder;
  const auto set_clock = [&](const std::string& offset) {
    std::ofstream(folder / "new") << offset << "\n";
    std::filesystem::rename(folder / "new", folder / "clock");
  };
  set_clock("+0s");
  const std::map<std::string, std::string> environment{{"LD_PRELOAD", library},
                                                       {"FAKETIME_TIMESTAMP_FILE", folder / "clock"},
                                                       {"FAKETIME_NO_CACHE", "1"},
                                                       {"FAKETIME_DONT_FAKE_MONOTONIC", "1"},
                                                       {"DONT_FAKE_MONOTONIC", "1"}};
  const auto seconds_there = [&] {
    return std::stol(testing::RunningProcess({"/usr/bin/date", "+%s"}, environment).finish().output);
  };
  auto arguments = testing::kRecoveryProbe;
  arguments.insert(arguments.end(), {"--run_dir", folder / "metrics", "--pause_ms", "40"});
  Launch launch(4, arguments, {}, environment);
  const auto wait_and_jump = [&](const char* step, const char* offset, long seconds) {
    REQUIRE(launch.wait_for(step));
    set_clock(offset);
    const auto apart = seconds_there() - std::time(nullptr);
    CHECK(std::abs(apart - seconds) < 5);  // the jump is real for the processes of the job
  };
  wait_and_jump("step 8/", "+3600s", 3600);
  wait_and_jump("step 16/", "-3600s", -3600);
  wait_and_jump("step 24/", "+0s", 0);
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK(testing::recoveries_in(done.output).empty());
  CHECK_THAT(done.output, !Catch::Contains("silent"));
  CHECK((testing::losses_of(testing::read_text(folder / "metrics/metrics.jsonl")) == reference.losses));
}

namespace {

std::vector<nlohmann::json> read_ledger(const std::string& path) {
  std::vector<nlohmann::json> records;
  std::istringstream lines(testing::read_text(path));
  for (std::string line; std::getline(lines, line);) records.push_back(nlohmann::json::parse(line));
  return records;
}

std::size_t under_way(const std::vector<nlohmann::json>& records) {
  return static_cast<std::size_t>(
      std::count_if(records.begin(), records.end(), [](const auto& record) { return !record["finished"]; }));
}

}  // namespace

TEST_CASE(
    "[L09] a rank that hangs in its own code is killed and replaced, and every rank's last collectives are on disk and "
    "named") {
  Launch launch(3,
                {"--probe_model", "norm", "--batch_size", "12", "--log_interval", "1", "--run_dir", "", "--fail_rank",
                 "1", "--fail_step", "9", "--fail_how", "hang", "--collective_timeout", "2"},
                {"--hang-after", "1"});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK_THAT(done.output, Catch::Contains("it hangs: it did not leave its step") &&
                              Catch::Contains("generation 2: 1 rank replaced"));
  for (const std::string rank : {"0", "1", "2"}) {
    const auto path = launch.folder() / ("run/ledger-rank" + rank + ".jsonl");
    CHECK_THAT(done.output, Catch::Contains("the last collectives of rank " + rank + " are in " + path));
    const auto records = read_ledger(path);
    REQUIRE(records.size() > 9);
    CHECK(under_way(records) == (rank == "1" ? 0 : 1));
    CHECK(records.back()["step"] == (rank == "1" ? 8 : 9));
    CHECK(records.back()["rank"] == std::stoi(rank));
  }
}

TEST_CASE("[L09] without recovery the error of a hang names the file with the last collectives") {
  Launch launch(2, {"--fail_rank", "1", "--fail_step", "9", "--fail_how", "hang", "--collective_timeout", "1"});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 70);
  CHECK_THAT(done.output,
             Catch::Contains("last collectives") && Catch::Contains(launch.folder() / "run/ledger-rank0.jsonl"));
  CHECK(under_way(read_ledger(launch.folder() / "run/ledger-rank0.jsonl")) == 1);
}
