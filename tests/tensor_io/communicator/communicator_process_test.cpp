// The same back ends between processes: this program runs itself once per rank.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/communicator/communicator.hpp"
#include "tests/catch.hpp"
#include "tests/share.hpp"
#include "tests/support/file_rendezvous.hpp"
#include "tests/support/rank_threads.hpp"
#include "tests/support/task_state.hpp"

using namespace troupe;
using namespace troupe::test;
using namespace std::chrono_literals;

namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

struct Outcome {
  int status = 0;  // of waitpid
  std::string said;
};

// Starts `world_size` processes that each run the test case "[.rank-process]" and returns how they ended.
std::vector<Outcome> run_processes(const std::string& scenario, const std::string& backend, int world_size) {
  char pattern[] = "/tmp/troupe-test-XXXXXX";
  const std::filesystem::path folder = ::mkdtemp(pattern);
  std::vector<pid_t> pids;
  for (int r = 0; r < world_size; ++r) {
    std::vector<std::string> values;
    for (char** entry = environ; *entry != nullptr; ++entry) values.emplace_back(*entry);
    values.push_back("TROUPE_TEST_RANK=" + std::to_string(r));
    values.push_back("TROUPE_TEST_WORLD=" + std::to_string(world_size));
    values.push_back("TROUPE_TEST_FOLDER=" + folder.string());
    values.push_back("TROUPE_TEST_SCENARIO=" + scenario);
    values.push_back("TROUPE_TEST_BACKEND=" + backend);
    std::vector<char*> pointers;
    for (auto& value : values) pointers.push_back(value.data());
    pointers.push_back(nullptr);
    std::string program = "/proc/self/exe";
    std::string filter = "[.rank-process]";
    char* arguments[] = {program.data(), filter.data(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    pid_t pid = 0;
    REQUIRE(posix_spawn(&pid, program.c_str(), &actions, nullptr, arguments, pointers.data()) == 0);
    posix_spawn_file_actions_destroy(&actions);
    pids.push_back(pid);
  }
  std::vector<Outcome> outcomes(world_size);
  for (int r = 0; r < world_size; ++r) {
    ::waitpid(pids[r], &outcomes[r].status, 0);
    std::ostringstream text;
    text << std::ifstream(folder / ("said." + std::to_string(r))).rdbuf();
    outcomes[r].said = text.str();
  }
  std::filesystem::remove_all(folder);
  return outcomes;
}

void compute(Communicator& communicator) {
  const int world = communicator.world_size();
  const auto window = communicator.allocate(100'000, at::kFloat);
  for (int round = 1; round <= 20; ++round) {
    window.fill_(communicator.rank() + round);
    communicator.all_reduce(window, ReduceOp::avg);
    const auto plain = at::full({150'000}, communicator.rank() + round, at::kLong);
    communicator.all_reduce(plain);
    const double sum = world * (world - 1) / 2.0 + world * round;
    require(window[99'999].item<float>() == static_cast<float>(sum) / static_cast<float>(world), "avg in windows");
    require(plain[149'999].item<std::int64_t>() == static_cast<std::int64_t>(sum), "sum of plain memory");
    const auto token = at::full({70'000}, communicator.rank(), at::kInt);
    const int right = (communicator.rank() + 1) % world;
    const int left = (communicator.rank() + world - 1) % world;
    if (communicator.rank() == 0) {
      communicator.send(token, right);
      communicator.recv(token, left);
    } else {
      const auto taken = at::zeros({70'000}, at::kInt);
      communicator.recv(taken, left);
      communicator.send(token, right);
      token.copy_(taken);
    }
    require(token[69'999].item<int>() == left, "a ring of sends");
    const auto votes = communicator.all_gather_bytes("vote of " + std::to_string(communicator.rank()));
    require(votes[world - 1] == "vote of " + std::to_string(world - 1), "votes");
  }
}

// In `allocate`, when all know where the others' memory is: rank 1 writes down its process id and goes on to the
// meeting of those that have mapped all. Rank 0 ends it there, before it has mapped anything itself.
class KillsTheOtherBeforeItMaps final : public FaultWatch {
 public:
  KillsTheOtherBeforeItMaps(int rank, std::filesystem::path file) : rank_(rank), file_(std::move(file)) {}
  void at(const char* place, std::int64_t) override {
    if (std::string(place) != "allocate") return;
    if (rank_ == 1) {
      std::ofstream(file_.string() + ".new") << ::getpid();
      return std::filesystem::rename(file_.string() + ".new", file_);
    }
    pid_t other = 0;
    wait_until([&] { return static_cast<bool>(std::ifstream(file_) >> other); });
    wait_until([&] { return test::state_of_task(other) == 'S'; });
    ::kill(other, SIGKILL);
    wait_until([&] { return test::state_of_task(other) == 'Z'; });
  }

 private:
  static void wait_until(const std::function<bool()>& is_so) {
    const auto deadline = std::chrono::steady_clock::now() + 20s;
    while (!is_so() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(1ms);
  }
  const int rank_;
  const std::filesystem::path file_;
};

}  // namespace

TEST_CASE("one rank of a process test", "[.rank-process]") {
  if (environment("TROUPE_TEST_RANK").empty()) {
    WARN("started by the tests in this file, not by hand");
    return;
  }
  const std::filesystem::path folder = environment("TROUPE_TEST_FOLDER");
  CommunicatorOptions options;
  options.rank = std::stoi(environment("TROUPE_TEST_RANK"));
  options.world_size = std::stoi(environment("TROUPE_TEST_WORLD"));
  options.backend = environment("TROUPE_TEST_BACKEND");
  options.timeout = 30s;
  if (options.backend == "hierarchical") options.host = options.rank % 3 == 2 ? "b" : "a";
  options.rendezvous = std::make_shared<FileRendezvous>(folder);
  const std::string scenario = environment("TROUPE_TEST_SCENARIO");
  std::string said = "ok";
  auto start = std::chrono::steady_clock::now();
  try {
    const auto communicator = make_communicator(options);
    communicator->barrier("start");
    start = std::chrono::steady_clock::now();
    if (scenario == "compute") {
      compute(*communicator);
    } else if (scenario == "killed before the other maps") {
      set_fault_watch(std::make_shared<KillsTheOtherBeforeItMaps>(options.rank, folder / "pid"));
      (void)communicator->allocate(1'000'000, at::kFloat);
    } else {
      const auto tensor = communicator->allocate(1'000'000, at::kFloat);
      for (int i = 0;; ++i) {
        if (options.rank == 1 && i == 10) ::raise(SIGKILL);
        communicator->all_reduce(tensor, ReduceOp::sum, "bucket " + std::to_string(i));
      }
    }
  } catch (const Error& error) {
    said = std::string(to_string(error.code())) + ": " + error.what();
  } catch (const std::exception& error) {
    said = error.what();
  }
  const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::ofstream(folder / ("said." + std::to_string(options.rank)))
      << said << (seconds < 10 ? "" : " after more than 10 s");
  CHECK_FALSE(said.empty());
}

TEST_CASE("[L03] processes compute the same as threads, on every back end", "[communicator][process]") {
  for (const std::string backend : {"shm", "gloo", "hierarchical", "auto"}) {
    if (!testing::in_share(0.4, "compute " + backend)) continue;
    INFO(backend);
    const auto outcomes = run_processes("compute", backend, 3);
    for (const auto& outcome : outcomes) {
      CHECK(outcome.said == "ok");
      CHECK(outcome.status == 0);
    }
  }
}

TEST_CASE("a process that is killed is named by the others, long before the deadline", "[communicator][process]") {
  for (const std::string backend : {"shm", "gloo", "hierarchical"}) {
    INFO(backend);
    const auto outcomes = run_processes("killed", backend, 3);
    CHECK(WIFSIGNALED(outcomes[1].status));
    CHECK(WTERMSIG(outcomes[1].status) == SIGKILL);
    for (const int r : {0, 2}) {
      // It had done bucket 9. What a killed process has sent may be lost with its connection (TCP's reset).
      CHECK_THAT(outcomes[r].said,
                 Catch::Contains("rank 1 died") && (Catch::Contains("bucket 10") || Catch::Contains("bucket 9")));
      CHECK_THAT(outcomes[r].said, !Catch::Contains("after more than"));
      CHECK(outcomes[r].status == 0);
    }
  }
}

TEST_CASE("a rank that dies while the others map its memory is a lost one, not one without memory",
          "[communicator][process]") {
  const auto outcomes = run_processes("killed before the other maps", "shm", 2);
  CHECK(WIFSIGNALED(outcomes[1].status));
  CHECK_THAT(outcomes[0].said, Catch::StartsWith("peer lost: ") && Catch::Contains("rank 1 died"));
}
