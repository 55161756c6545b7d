#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "tests/catch.hpp"
#include "tests/support/running_process.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;

namespace {

/// A socket on loopback; port 0: bound to any, or else connected.
class LoopbackSocket {
 public:
  explicit LoopbackSocket(int port = 0) {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address_.sin_port = htons(static_cast<std::uint16_t>(port));
    auto* address = reinterpret_cast<sockaddr*>(&address_);
    socklen_t length = sizeof address_;
    REQUIRE((port == 0 ? ::bind(fd_, address, length) : ::connect(fd_, address, length)) == 0);
    REQUIRE(::getsockname(fd_, address, &length) == 0);
  }
  ~LoopbackSocket() { ::close(fd_); }
  LoopbackSocket(const LoopbackSocket&) = delete;
  LoopbackSocket& operator=(const LoopbackSocket&) = delete;
  int port() const { return ntohs(address_.sin_port); }

  /// The first bytes that come after `words`; empty: the other side closes.
  std::string answer_to(const std::string& words) const {
    REQUIRE(::send(fd_, words.data(), words.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(words.size()));
    std::array<char, 64> block{};
    const auto n = ::recv(fd_, block.data(), block.size(), 0);
    return {block.data(), n > 0 ? static_cast<std::size_t>(n) : 0};
  }

 private:
  int fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address_{};
};

/// A variable in the environment of one of the job's processes; empty: in none.
std::string variable_of_job(const std::string& folder, const std::string& name) {
  for (const auto pid : testing::processes_of(folder)) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/environ", std::ios::binary);
    for (std::string entry; std::getline(file, entry, '\0');) {
      if (entry.starts_with(name + "=")) return entry.substr(name.size() + 1);
    }
  }
  return {};
}

std::string free_port() { return std::to_string(LoopbackSocket().port()); }

}  // namespace

TEST_CASE("[K01] every kind of launch on loopback turns a stranger without keys away") {
  using Words = std::vector<std::string>;
  auto words = GENERATE(as<Words>{}, Words{"--nproc", "2"}, Words{"--hosts", "localhost:2"}, Words{"--hosts", "hosts"},
                        Words{"--nnodes", "1", "--node-rank", "0", "--nproc-per-node", "2", "--master-addr",
                              "127.0.0.1", "--master-port", free_port()});
  const testing::ScratchDirectory folder;
  testing::write_text(folder / "hosts", "a slots=1 address=127.0.0.1\nb slots=1 address=127.0.0.2\n");
  if (words.back() == "hosts") words.back() = folder / "hosts";
  Words command{TROUPE_PROGRAM, "launch", "--run-dir", folder / "run"};
  command.insert(command.end(), words.begin(), words.end());
  for (const auto& word : Words{TROUPE_RANK_PROBE, "--batch_size", "16", "--checkpoint_dir", folder / "checkpoints",
                                "--epochs", "100000", "--pause_ms", "2"})
    command.push_back(word);
  testing::RunningProcess job(command);
  const bool trains = job.wait_for("step 10/");
  INFO(job.output());
  REQUIRE(trains);

  const auto coordinator = variable_of_job(folder.path(), "TROUPE_COORDINATOR");
  REQUIRE(coordinator.starts_with("127."));
  const LoopbackSocket stranger(std::stoi(coordinator.substr(coordinator.find(':') + 1)));
  // As CAF greets: a frame of 32 bytes. A gate without keys lets it in, and CAF answers with its own.
  std::string greeting(32, '\0');
  greeting[0] = 1;
  greeting[7] = 5;
  const auto answer = stranger.answer_to(greeting + "hello");
  CHECK((answer.empty() || answer[0] == '\x15'));  // an alert of TLS
  CHECK(job.wait_for("was refused: no TLS 1.3"));
  const auto id = variable_of_job(folder.path(), "TROUPE_JOB_ID");
  CHECK((id.size() == 32 && id.find_first_not_of("0123456789abcdef") == id.npos));
  job.signal(SIGINT);
  const auto done = job.finish();
  INFO(done.output);
  CHECK(done.code == 130);
}

TEST_CASE("[K01] several nodes without keys are refused with both ways on, on loopback too") {
  const auto address = GENERATE(as<std::string>{}, "127.0.0.1", "localhost", "10.1.2.3");
  const auto rank = GENERATE(as<std::string>{}, "0", "1");
  const auto done = testing::RunningProcess({TROUPE_PROGRAM, "launch", "--nnodes", "2", "--node-rank", rank,
                                             "--master-addr", address, TROUPE_RANK_PROBE})
                        .finish();
  INFO(done.output);
  CHECK(done.code == 2);
  CHECK_THAT(done.output, Catch::Contains("--keys DIR") && Catch::Contains("--insecure-network") &&
                              Catch::Contains(address + ":29500"));
  CHECK(std::count(done.output.begin(), done.output.end(), '\n') == 1);
}

// Node `rank` of a job of two, with keys of that name.
std::vector<std::string> node_of_two(const std::string& rank, const std::string& folder, const std::string& port,
                                     const std::string& keys = "ours", const std::string& batch_size = "16",
                                     const std::string& nproc = "1") {
  return {TROUPE_PROGRAM,
          "launch",
          "--nnodes",
          "2",
          "--node-rank",
          rank,
          "--nproc-per-node",
          nproc,
          "--master-port",
          port,
          "--master-addr",
          "127.0.0.1",
          "--keys",
          folder + "/" + keys,
          "--run-dir",
          folder + "/" + rank,
          TROUPE_RANK_PROBE,
          "--batch_size",
          batch_size,
          "--epochs",
          "1",
          "--checkpoint_dir",
          folder + "/checkpoints"};
}

/// Node 0 waits for its node 1, and both end well.
void check_ends_well(testing::RunningProcess& first, const std::vector<std::string>& node_1) {
  const auto second = testing::RunningProcess(node_1).finish();
  const auto done = first.finish();
  INFO(second.output << done.output);
  CHECK(second.code == 0);
  CHECK(done.code == 0);
}

void make_keys(const std::string& folder) {
  for (const std::string keys : {"ours", "others"})
    REQUIRE(testing::RunningProcess({TROUPE_PROGRAM, "keys", folder + "/" + keys}).finish().code == 0);
}

TEST_CASE("[L11] a node with another job's keys is told so at once, and the job does not mind") {
  const testing::ScratchDirectory folder;
  const auto port = free_port();
  make_keys(folder.path());
  testing::RunningProcess first(node_of_two("0", folder.path(), port));
  const auto stranger = testing::RunningProcess(node_of_two("1", folder.path(), port, "others")).finish();
  INFO(stranger.output);
  CHECK(stranger.code == 69);
  CHECK_THAT(stranger.output,
             Catch::Contains("127.0.0.1:" + port + ": its keys are another job's") && Catch::Contains("--keys DIR"));
  check_ends_well(first, node_of_two("1", folder.path(), port));
}

TEST_CASE("[L8] another job's node with the same port and keys is turned away, and the job does not mind") {
  const testing::ScratchDirectory folder;
  const auto port = free_port();
  make_keys(folder.path());
  testing::RunningProcess first(node_of_two("0", folder.path(), port));
  for (const auto& [words, difference] :
       {std::pair(node_of_two("1", folder.path(), port, "ours", "32"), "batch_size is '16' there and '32' here"),
        std::pair(node_of_two("1", folder.path(), port, "ours", "16", "2"),
                  "--nproc-per-node is '1' there and '2' here")}) {
    const auto stranger = testing::RunningProcess(words).finish();
    INFO(stranger.output);
    CHECK(stranger.code == 2);
    CHECK_THAT(stranger.output, Catch::Contains("the job at 127.0.0.1:" + port + " is a different one: ") &&
                                    Catch::Contains(difference) && Catch::Contains("another --master-port"));
    CHECK(std::count(stranger.output.begin(), stranger.output.end(), '\n') == 1);
  }
  check_ends_well(first, node_of_two("1", folder.path(), port));
}

TEST_CASE("[L8] a node number that is typed twice is refused, and the job does not mind") {
  const testing::ScratchDirectory folder;
  const auto port = free_port();
  make_keys(folder.path());
  auto slowly = [&](const std::string& rank) {
    auto words = node_of_two(rank, folder.path(), port);
    words.insert(words.end(), {"--probe_load_ms", "20", "--log_interval", "1"});
    return words;
  };
  testing::RunningProcess first(slowly("0"));
  testing::RunningProcess second(slowly("1"));
  REQUIRE(first.wait_for("step 2"));
  const auto again = testing::RunningProcess(slowly("1")).finish();
  INFO(again.output);
  CHECK(again.code == 2);
  CHECK_THAT(again.output, Catch::Contains("refuses: node1 has joined already"));
  first.signal(SIGINT);
  const auto done = first.finish();
  INFO(done.output);
  CHECK(done.code == 130);
  CHECK(second.finish().code == 0);
}

// Task `rank` of `srun -N2 --ntasks-per-node=1`.
std::vector<std::string> task_of_srun(const std::string& rank, const std::string& folder, const std::string& port) {
  return {"/usr/bin/env",
          "SLURM_JOB_ID=4711",
          "SLURM_STEP_ID=3",
          "SLURM_STEP_NODELIST=localhost,elsewhere",
          "SLURM_STEP_TASKS_PER_NODE=1(x2)",
          "SLURM_LOCALID=0",
          "SLURM_PROCID=" + rank,
          "SLURM_NODEID=" + rank,
          TROUPE_PROGRAM,
          "launch",
          "--slurm",
          "--nproc-per-node",
          "1",
          "--master-port",
          port,
          "--run-dir",
          folder + "/run",
          TROUPE_RANK_PROBE,
          "--batch_size",
          "16",
          "--epochs",
          "100000",
          "--pause_ms",
          "2",
          "--checkpoint_dir",
          folder + "/checkpoints"};
}

TEST_CASE("[K01] under srun node 0 makes the keys of all nodes, a pair for each, which are gone with the job") {
  const testing::ScratchDirectory folder;
  const auto port = free_port();
  const auto keys = folder / "run/.keys-4711.3.0";
  testing::RunningProcess second(task_of_srun("1", folder.path(), port));
  testing::RunningProcess first(task_of_srun("0", folder.path(), port));
  const bool trains = first.wait_for("step 10/");
  INFO(first.output());
  REQUIRE(trains);
  for (const auto& name : {keys, keys + "/node0", keys + "/node1"}) {
    struct stat facts {};
    REQUIRE(::lstat(name.c_str(), &facts) == 0);
    CHECK((facts.st_mode & 0777) == 0700);
  }
  CHECK(testing::read_text(keys + "/node0/certificate.pem") != testing::read_text(keys + "/node1/certificate.pem"));
  first.signal(SIGINT);
  CHECK(first.finish().code == 130);
  CHECK(second.finish().code == 0);
  CHECK_FALSE(std::filesystem::exists(keys));
}

TEST_CASE("[K01] under srun a node waits for its keys, and takes none from a folder that others may read") {
  const testing::ScratchDirectory folder;
  const bool others = GENERATE(true, false);
  if (others) std::filesystem::create_directories(folder / "run/.keys-4711.3.0");
  testing::RunningProcess node(task_of_srun("1", folder.path(), free_port()));
  if (!others) {
    REQUIRE(node.wait_for("node 1 waits for node 0's keys in "));
    node.signal(SIGINT);
  }
  const auto done = node.finish();
  INFO(done.output);
  CHECK(done.code == (others ? 65 : 130));
  if (others) CHECK_THAT(done.output, Catch::Contains("it is not a folder that only this user can access"));
}

TEST_CASE("[K03] a log that is a pipe without a reader ends the launch, and does not hang it") {
  const testing::ScratchDirectory folder;
  std::filesystem::create_directories(folder / "run");
  REQUIRE(::mkfifo((folder / "run/rank0.log").c_str(), 0600) == 0);
  const auto done =
      testing::RunningProcess({TROUPE_PROGRAM, "launch", "--run-dir", folder / "run", TROUPE_RANK_PROBE}).finish();
  INFO(done.output);
  CHECK(done.code == 74);
  CHECK_THAT(done.output, Catch::Contains("run/rank0.log: No such device or address"));
}
