#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <optional>

#include "tests/catch.hpp"
#include "tests/support/running_process.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;

namespace {

// A socket that holds a loopback port while it lives; 0: any.
class HeldPort {
 public:
  explicit HeldPort(int port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    socklen_t length = sizeof address;
    if (::bind(fd_, reinterpret_cast<sockaddr*>(&address), length) != 0) return;
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
  }
  ~HeldPort() { ::close(fd_); }
  HeldPort(const HeldPort&) = delete;
  HeldPort& operator=(const HeldPort&) = delete;
  int port() const { return port_; }  // 0: it was taken

 private:
  int fd_;
  int port_ = 0;
};

// A port for the master whose successor is free too: torchrun's store takes the first, our coordinator the second.
std::string master_port() {
  for (int attempt = 0; attempt < 100; ++attempt) {
    const HeldPort first(0);
    if (first.port() < 65535 && HeldPort(first.port() + 1).port() != 0) return std::to_string(first.port());
  }
  throw std::runtime_error("no two free ports in a row");
}

// A Python that can run torchrun: of the checkout's own environments, or named by TROUPE_TORCH_PYTHON.
std::optional<std::string> torch_python() {
  std::vector<std::string> candidates{TROUPE_SOURCE_DIR "/.venv-bench/bin/python3",
                                      TROUPE_SOURCE_DIR "/.venv/bin/python3"};
  if (const char* named = std::getenv("TROUPE_TORCH_PYTHON")) candidates.insert(candidates.begin(), named);
  for (const auto& python : candidates) {
    if (!std::filesystem::exists(python)) continue;
    if (testing::RunningProcess({python, "-c", "import torch.distributed.run"}).finish().code == 0) return python;
  }
  return std::nullopt;
}

}  // namespace

TEST_CASE("[L02] two processes with torchrun's variables and nothing of ours find each other and train") {
  testing::ScratchDirectory folder;
  const auto port = master_port();
  const auto start = [&](int rank) {
    const auto id = std::to_string(rank);
    return testing::RunningProcess({TROUPE_RANK_PROBE, "--batch_size", "16", "--epochs", "2", "--run_dir", "",
                                    "--checkpoint_dir", folder / "checkpoints"},
                                   {{"RANK", id},
                                    {"LOCAL_RANK", id},
                                    {"ROLE_RANK", id},
                                    {"GROUP_RANK", "0"},
                                    {"WORLD_SIZE", "2"},
                                    {"LOCAL_WORLD_SIZE", "2"},
                                    {"ROLE_WORLD_SIZE", "2"},
                                    {"GROUP_WORLD_SIZE", "1"},
                                    {"MASTER_ADDR", "127.0.0.1"},
                                    {"MASTER_PORT", port},
                                    {"TORCHELASTIC_RESTART_COUNT", "0"},
                                    {"TORCHELASTIC_MAX_RESTARTS", "0"},
                                    {"TORCHELASTIC_RUN_ID", "none"}});
  };
  auto one = start(1);  // the one that hosts nothing comes first, and waits
  auto zero = start(0);
  const auto done = zero.finish(), other = one.finish();
  INFO(done.output << other.output);
  CHECK(done.code == 0);
  CHECK(other.code == 0);
  CHECK_THAT(done.output, Catch::Contains("2 ranks, backend shm") && Catch::Contains("step 30/32") &&
                              Catch::Contains("step-00000032"));
  CHECK(other.output == "");
}

TEST_CASE("[L02] a rank that fails under torchrun's variables ends the other with its text") {
  testing::ScratchDirectory folder;
  const auto port = master_port();
  const auto start = [&](const std::string& rank) {
    return testing::RunningProcess(
        {TROUPE_RANK_PROBE, "--batch_size", "16", "--epochs", "2", "--run_dir", "", "--checkpoint_dir",
         folder / "checkpoints", "--fail_rank", "1"},
        {{"RANK", rank}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}});
  };
  auto zero = start("0");
  auto one = start("1");
  const auto done = zero.finish(), other = one.finish();
  INFO(done.output << other.output);
  CHECK(done.code > 0);
  CHECK(other.code == 1);
  CHECK_THAT(done.output, Catch::Contains("rank 1") && Catch::Contains("the probe was told to throw"));
}

TEST_CASE("[L02] our launcher starts a Python script of torch.distributed") {
  const auto python = torch_python();
  if (!python)
    WARN(
        "without torch: no Python here has torch.distributed (./dev bench sets one up), so the script meets by sockets "
        "alone");
  testing::ScratchDirectory folder;
  const auto done =
      testing::RunningProcess({TROUPE_PROGRAM, "launch", "--nproc", "3", "--no-recovery", "--run-dir", folder / "run",
                               python.value_or("/usr/bin/python3"),
                               TROUPE_SOURCE_DIR "/tests/launch/launcher/ddp_script.py", python ? "torch" : "sockets"})
          .finish();
  INFO(done.output);
  CHECK(done.code == 0);
  for (const char* rank : {"0", "1", "2"})
    CHECK_THAT(done.output, Catch::Contains(std::string("[rank ") + rank + "] rank " + rank + " of 3 met the others"));
}

TEST_CASE("[L02] our launcher tells a process whether the job outlives the loss of a rank") {
  const bool recovery = GENERATE(false, true);
  testing::ScratchDirectory folder;
  std::vector<std::string> words{TROUPE_PROGRAM, "launch", "--nproc", "1", "--run-dir", folder / "run"};
  if (!recovery) words.emplace_back("--no-recovery");
  for (const char* word : {"/bin/sh", "-c", "echo recovery=$TROUPE_RECOVERY"}) words.emplace_back(word);
  const auto done = testing::RunningProcess(words).finish();
  CHECK_THAT(done.output, Catch::Contains(recovery ? "recovery=1" : "recovery=0"));
}

TEST_CASE("[L02] torchrun itself starts the program") {
  const auto python = torch_python();
  if (!python) {
    std::fputs(
        "\n*** NOT RUN: torchrun needs a whole PyTorch, and neither .venv-bench nor TROUPE_TORCH_PYTHON has one (./dev "
        "bench installs "
        "it).\n"
        "*** The test with torchrun's variables stands in for it.\n",
        stderr);
    WARN("NOT RUN: no Python with torch.distributed.run");
    return;
  }
  testing::ScratchDirectory folder;
  testing::RunningProcess torchrun({*python,
                                    "-m",
                                    "torch.distributed.run",
                                    "--nproc-per-node",
                                    "2",
                                    "--nnodes",
                                    "1",
                                    "--master-addr",
                                    "127.0.0.1",
                                    "--master-port",
                                    master_port(),
                                    "--no-python",
                                    TROUPE_RANK_PROBE,
                                    "--batch_size",
                                    "16",
                                    "--epochs",
                                    "2",
                                    "--run_dir",
                                    "",
                                    "--checkpoint_dir",
                                    folder / "checkpoints"});
  const auto done = torchrun.finish();
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK_THAT(done.output, Catch::Contains("2 ranks, backend shm") && Catch::Contains("step 30/32") &&
                              Catch::Contains("step-00000032"));
  CHECK(std::filesystem::exists(folder / "checkpoints/latest"));
}
