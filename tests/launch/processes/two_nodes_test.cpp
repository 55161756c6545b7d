// Jobs of two nodes, each with a launcher, on this machine.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "launch/network/actor_system.hpp"
#include "tests/support/recovery_run.hpp"

using namespace troupe;
using namespace std::chrono_literals;
using testing::RunningProcess;
namespace fs = std::filesystem;
using Words = std::vector<std::string>;

namespace {

// A process that has a port of the loopback interface, and says nothing there.
class Stranger {
 public:
  explicit Stranger(std::uint16_t port = 0) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    ::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    const auto bound = [&] {
      return ::bind(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    };
    // The threads of a process that was killed end one after the other, and the last one closes its sockets.
    const auto deadline = std::chrono::steady_clock::now() + 20s;
    while (!bound()) {
      REQUIRE(std::chrono::steady_clock::now() < deadline);
      std::this_thread::sleep_for(5ms);
    }
    REQUIRE(::listen(socket_, 16) == 0);
    socklen_t size = sizeof address;
    REQUIRE(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
  }
  ~Stranger() { ::close(socket_); }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;
  std::uint16_t port() const { return port_; }

 private:
  int socket_;
  std::uint16_t port_ = 0;
};

// Connections that somebody has to a port of this machine.
int connections_to(std::uint16_t port) {
  std::istringstream rows(testing::proc_file("/proc/net/tcp"));
  int found = 0;
  for (std::string row; std::getline(rows, row);) {
    std::istringstream words(row);
    std::string number, here, there, state;
    words >> number >> here >> there >> state;
    found += state == "01" && std::stoul(here.substr(9), nullptr, 16) == port ? 1 : 0;
  }
  return found;
}

struct TwoNodes {
  explicit TwoNodes(const Words& settings) : zero(node("0", settings)), one(node("1", settings)) {}
  RunningProcess node(const std::string& number, const Words& settings) const {
    Words words{TROUPE_PROGRAM,
                "launch",
                "--nnodes",
                "2",
                "--node-rank",
                number,
                "--nproc-per-node",
                "1",
                "--master-addr",
                "127.0.0.1",
                "--master-port",
                std::to_string(port),
                "--keys",
                keys(),
                "--run-dir",
                folder / "run",
                TROUPE_RANK_PROBE,
                "--batch_size",
                "16",
                "--probe_model",
                "norm",
                "--log_interval",
                "1",
                "--checkpoint_dir",
                folder / "checkpoints"};
    words.insert(words.end(), settings.begin(), settings.end());
    return RunningProcess(words);
  }
  std::string keys() const {
    auto made = folder / "keys";
    if (!fs::exists(made)) REQUIRE(RunningProcess({TROUPE_PROGRAM, "keys", made}).finish().code == 0);
    return made;
  }

  testing::ScratchDirectory folder;
  const std::uint16_t port = Stranger().port();  // free again
  RunningProcess zero, one;
};

}  // namespace

TEST_CASE("[S4] a coordinator that fails three times goes round three other ports, and back to its own") {
  const auto ports_of = [](std::uint16_t port) {
    std::vector<int> ports;
    for (int tries = 0; tries < 10; ++tries) ports.push_back(coordinator_port(port, tries));
    return ports;
  };
  CHECK(ports_of(29'500) ==
        std::vector<int>{29'500, 29'500, 29'500, 29'502, 29'503, 29'504, 29'500, 29'502, 29'503, 29'504});
  CHECK(ports_of(65'533) ==
        std::vector<int>{65'533, 65'533, 65'533, 65'535, 65'530, 65'529, 65'533, 65'535, 65'530, 65'529});
}

TEST_CASE("[S4] fault 41: all nodes of a job find the coordinator whose port another process has taken", "[share]") {
  TwoNodes job({"--pause_ms", "20", "--epochs", "30"});
  REQUIRE(job.zero.wait_for("step 10/"));
  const auto coordinator = testing::process_of("troupe", "coordinator", job.zero.pid());
  REQUIRE(coordinator > 0);
  job.zero.signal(SIGSTOP);
  ::kill(coordinator, SIGKILL);
  const Stranger stranger(job.port);
  job.zero.signal(SIGCONT);
  REQUIRE(job.zero.wait_for("troupe: the coordinator listens on port " + std::to_string(job.port + 2) + " now"));
  // Both agents and both ranks.
  REQUIRE(job.zero.wait_until([&] { return connections_to(static_cast<std::uint16_t>(job.port + 2)) == 4; }));
  REQUIRE(job.one.wait_for("[rank 1] pid "));
  ::kill(testing::pid_said_by(job.one.output(), "[rank 1] pid "), SIGKILL);
  const auto done = job.zero.finish(), other = job.one.finish();
  INFO(done.output << other.output);
  CHECK(done.code == 0);
  CHECK(other.code == 0);
  CHECK_THAT(done.output, !Catch::Contains("2 ranks did not come back"));
  CHECK(testing::recoveries_in(done.output).size() == 1);
  CHECK(testing::lives_in(done.output)["rank 0"] == 1);
  CHECK(testing::lives_in(other.output)["rank 1"] == 2);
}

TEST_CASE("[L04] fault 44: a node that is to leave and gets a second signal ends at once, as that signal has it",
          "[share]") {
  TwoNodes job({"--pause_ms", "4000", "--epochs", "1", "--max_steps", "2"});
  REQUIRE(job.zero.wait_for("step 1/"));
  REQUIRE(job.one.wait_for("[rank 1] pid "));
  job.one.signal(SIGTERM);
  REQUIRE(job.one.wait_for("this node's ranks leave"));
  const auto second_counts = std::chrono::steady_clock::now() + 1'200ms;  // one that comes sooner is the first again
  job.one.wait_until([&] { return std::chrono::steady_clock::now() > second_counts; });
  job.one.signal(SIGTERM);
  const auto left = job.one.finish(), done = job.zero.finish();
  INFO(left.output << done.output);
  CHECK(left.code == 128 + SIGTERM);
  CHECK(done.code == 0);
}
