// What every back end must compute, checked on all of them by the public suite (tensor_io/communicator/conformance).
// Failures: communicator_failure_test.cpp.
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/communicator/conformance/communicator_conformance.hpp"
#include "tests/catch.hpp"
#include "tests/support/rank_threads.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/task_state.hpp"
#include "tests/support/thread_nccl.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kMostRanks = 4;  // sanitizers see nothing new in more, and are slow
#else
constexpr int kMostRanks = 8;
#endif

// What NCCL's communicator makes of NCCL's calls, on threads that stand in for NCCL; tests/gpu has the real one.
std::vector<Backend> backends_and_nccl() {
  auto backends = all_backends();
  const auto here = [](int) { return std::string("here"); };
  backends.push_back({"nccl's communicator over threads", "nccl", false, here, std::make_shared<ThreadNccl>()});
  backends.push_back({"nccl's communicator over threads, tensors from allocate()", "nccl", true, here,
                      std::make_shared<ThreadNccl>()});
  return backends;
}

// Runs one check of the suite on each back end; `ranks`: group sizes, if they are not the check's.
void conforms(const char* check, const std::vector<int>& ranks = {},
              const std::vector<Backend>& backends = backends_and_nccl()) {
  for (const auto& backend : backends) {
    INFO(backend.name);
    CommunicatorConformanceOptions options;
    options.name = backend.backend;
    options.factory = [&](CommunicatorOptions of_rank) {
      of_rank.nccl = backend.nccl;
      return make_communicator(std::move(of_rank));
    };
    options.only = check;
    std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(options.ranks), [](int n) { return n <= kMostRanks; });
    options.host = backend.host;
    options.in_allocated_memory = backend.in_windows;
    options.sums_by_host = backend.backend == "hierarchical";
    options.makes_updates = backend.backend != "nccl";  // on the CPU only
    options.shares_memory = backend.backend == "shm";
    const auto report = communicator_conformance(options);
    CHECK(report.failures == std::vector<std::string>{});
    CHECK(report.groups > 0);
  }
}

}  // namespace

TEST_CASE("[L03] all_reduce computes every operation in every type and size on every back end", "[communicator]") {
  conforms("all_reduce", {1, 2, 3, 5, 8});
}

TEST_CASE("all_reduce of many chunks adds each element once, wherever the tensor lies", "[communicator]") {
  const auto worlds = testing::kThreadSanitizer ? std::vector<int>{2} : std::vector<int>{2, 3, 4};
  conforms("many_chunks", worlds);
}

TEST_CASE(
    "[D16] all_reduce_update makes of the ranks' average what an update here would, on all ranks, and leaves the rest "
    "alone",
    "[communicator]") {
  conforms("all_reduce_update", {1, 2, 3, 5});
}

TEST_CASE("[D16] all_reduce_update refuses what it can't update, before a peer is touched", "[communicator]") {
  GroupOptions group;
  group.backend = {"shm", "shm"};
  group.world_size = 2;
  CHECK_NOTHROW(run_ranks(group, [&](Communicator& communicator) {
    const auto memory = [&](std::int64_t numel) { return communicator.allocate(numel, at::kFloat); };
    const auto gradients = memory(64'000);
    const ReducedUpdate good{{memory(64'000), {}, {}}, {memory(64'000), {}, {}}, {{0, 64'000, UpdateRule{}}}, false};
    const auto refused = [&](const ReducedUpdate& update, const char* why) {
      try {
        communicator.all_reduce_update(gradients, update);
      } catch (const Error& error) {
        require(error.code() == ErrorCode::usage && std::string(error.what()).find(why) != std::string::npos,
                error.what());
        return;
      }
      require(false, why);
    };
    auto bad = good;
    bad.next.parameter = bad.state.parameter;
    refused(bad, "in place");
    bad = good;
    bad.state.parameter = at::zeros({100});
    refused(bad, "length");
    bad = good;
    bad.next.first = memory(64'000);
    refused(bad, "only one of");
    bad = good;
    bad.runs[0].end = 64'001;
    refused(bad, "`runs`");
    bad = good;
    bad.runs[0].rule.has_first = true;
    refused(bad, "moments");
    communicator.all_reduce_update(gradients, good);
    bad = good;
    bad.next.parameter = at::zeros({64'000});
    refused(bad, "allocate()");
  }));
}

TEST_CASE("a tensor from allocate() meets one from elsewhere and both get the result", "[communicator]") {
  conforms("mixed_memory", {}, {{"shm", "shm"}});
}

TEST_CASE("[L03] reduce_scatter gives each rank its reduced slice", "[communicator]") {
  conforms("reduce_scatter", {1, 2, 3, 8});
}

TEST_CASE("[L03] reduce leaves the result on the root and the others' tensors alone", "[communicator]") {
  conforms("reduce", {1, 2, 5});
}

TEST_CASE("[L03] all_gather, gather, scatter, all_to_all and broadcast move every type and size", "[communicator]") {
  const auto worlds = testing::kThreadSanitizer ? std::vector<int>{1, 3} : std::vector<int>{1, 2, 3, 8};
  conforms("gathers", worlds);
}

TEST_CASE("all_gather into memory from allocate() needs no staging and gives the same", "[communicator]") {
  conforms("all_gather_into_allocated", {}, {{"shm", "shm"}});
}

TEST_CASE("[L03] send and recv deliver in order between any two ranks", "[communicator]") {
  conforms("send_recv", {2, 3, 6});
}

TEST_CASE("[L03] a rank that waits for another sleeps meanwhile", "[communicator]") {
  for (const auto& backend : all_backends()) {
    GroupOptions group;
    group.backend = backend;
    std::atomic<int> waiting{0};
    run_ranks(group, [&](Communicator& communicator) {
      const auto value = at::ones({3}, at::kFloat);
      for (int round = 0; round < 3; ++round) {  // the first wait may be unlike those after it
        communicator.barrier();
        if (communicator.rank() == 0) {
          waiting = static_cast<int>(::gettid());
          communicator.recv(value, 1);
          waiting = 0;
          continue;
        }
        // It may look around for a moment first. A thread that turns in a circle is not asleep at ten looks in a row.
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        for (int asleep = 0; asleep < 10;) {
          require(std::chrono::steady_clock::now() < until, "rank 0 sleeps");
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          asleep = waiting != 0 && state_of_task(waiting) == 'S' ? asleep + 1 : 0;
        }
        communicator.send(value, 0);
      }
    });
  }
}

TEST_CASE("byte strings of any length come back by rank", "[communicator]") { conforms("byte_strings", {1, 2, 4}); }

TEST_CASE("sums of arbitrary numbers are the same bits on all ranks, each time, in rank order", "[communicator]") {
  conforms("sums", {2, 3, 4});
}

TEST_CASE("the average of 16-bit numbers is there where their sum would be none", "[communicator]") {
  conforms("averages", {2, 5});
}

TEST_CASE("min and max keep a NaN whichever rank has it", "[communicator]") { conforms("nan", {3}); }

TEST_CASE("split makes groups that work side by side, ordered by key", "[communicator]") {
  conforms("split", {1, 2, 5});
}

TEST_CASE("[D15] a group of slow ranks holds up nobody outside it", "[communicator]") { conforms("slow_group", {4}); }

TEST_CASE("memory from allocate() is zeroed, aligned, and outlives the communicator", "[communicator]") {
  conforms("allocate");
}

TEST_CASE("memory from allocate_shared() is one on all ranks, or undefined on all where they have none in common",
          "[communicator]") {
  conforms("allocate_shared");
}

TEST_CASE("the ledger holds what was done, with step and a shortened label", "[communicator]") {
  conforms("ledger", {2});
}

TEST_CASE("[D15] every wait ends, by its deadline or by abort()", "[communicator]") {
  conforms("deadline");
  conforms("abort");
}

TEST_CASE("auto takes shared memory on one host, TCP between single ranks, both between hosts of several",
          "[communicator]") {
  const auto backend_for = [](int world_size, std::function<std::string(int)> host) {
    GroupOptions group;
    group.backend = {"auto", "auto", false, std::move(host)};
    group.world_size = world_size;
    std::string seen;
    run_ranks(group, [&](Communicator& communicator) {
      communicator.barrier();
      if (communicator.rank() == 0) seen = communicator.backend();
    });
    return seen;
  };
  CHECK(backend_for(1, [](int) { return "a"; }) == "single");
  CHECK(backend_for(3, [](int) { return "a"; }) == "shm");
  CHECK(backend_for(2, [](int rank) { return rank == 0 ? "a" : "b"; }) == "gloo");
  CHECK(backend_for(3, [](int rank) { return rank < 2 ? "a" : "b"; }) == "hierarchical");
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define TROUPE_LARGE "[.large]"  // takes five times the memory and minutes
#else
#define TROUPE_LARGE "[large]"
#endif
TEST_CASE("[L03] more than 2 GiB are reduced in one call", "[communicator][share]" TROUPE_LARGE) {
  GroupOptions group;
  group.backend = {"shm", "shm", true};
  group.timeout = std::chrono::seconds(60);
  const std::int64_t numel = (std::int64_t{1} << 31) + 65;
  CHECK_NOTHROW(run_ranks(group, [&](Communicator& communicator) {
    const auto tensor = communicator.allocate(numel, at::kByte);
    auto* bytes = tensor.data_ptr<std::uint8_t>();
    std::memset(bytes, communicator.rank() + 1, numel);
    bytes[numel - 1] = 7;
    bytes[std::int64_t{1} << 30] = 9;
    communicator.all_reduce(tensor, ReduceOp::sum);
    require(bytes[numel - 1] == 14 && bytes[numel - 2] == 3, "the end");
    require(bytes[std::int64_t{1} << 30] == 18 && bytes[0] == 3, "the middle and the start");
    require(std::count(bytes, bytes + numel, 3) == numel - 2, "nowhere added twice or not at all");
  }));
}
