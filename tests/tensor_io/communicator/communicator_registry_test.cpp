// A back end from outside: by name, and under the public suite, which has to find what is broken.
#include <ATen/ops/ones.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "tensor_io/communicator/communicator_registry.hpp"
#include "tensor_io/communicator/conformance/communicator_conformance.hpp"
#include "tests/catch.hpp"
#include "tests/support/rank_threads.hpp"
#include "tests/support/relay_communicator.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

std::string refusal(const CommunicatorOptions& options) {
  try {
    make_communicator(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "made";
}

}  // namespace

TEST_CASE("a back end that a program registers passes the suite of those that ship", "[communicator]") {
  register_relay("relay", Fault::none);
  CommunicatorConformanceOptions options;
  options.name = "relay";
  options.ranks = {1, 2, 3};
  std::vector<std::string> log;
  options.log = [&](const std::string& line) { log.push_back(line); };
  const auto report = communicator_conformance(options);
  CHECK(report.failures == std::vector<std::string>{});
  CHECK(report.to_string() == "relay conforms: " + std::to_string(report.groups) + " groups of ranks");
  CHECK(static_cast<int>(log.size()) == report.groups);
  CHECK(log.front() == "all_reduce on 1 ranks");
  for (const auto& check : communicator_checks()) {
    INFO(check.name);
    CHECK(std::any_of(log.begin(), log.end(), [&](const auto& line) { return line.starts_with(check.name + " on "); }));
    CHECK_FALSE(check.description.empty());
  }
}

TEST_CASE("the suite finds each fault of a broken communicator, and names check, group and rank", "[communicator]") {
  struct Case {
    Fault fault;
    const char* check;
    const char* found;
  };
  const std::vector<Case> cases{
      {Fault::product, "all_reduce", "product of 1 Float"},
      {Fault::last_element, "many_chunks", "sum of 131072 Float"},
      {Fault::gather_order, "gathers", "all_gather of 1 Float"},
      {Fault::root, "gathers", "broadcast of 37 Float"},
      {Fault::others, "reduce", "reduce of 1 Float"},
      {Fault::transpose, "gathers", "all_to_all of 1 Float"},
      {Fault::received, "send_recv", "ring of 65600 Float"},
      {Fault::nan, "nan", "NaN at 0"},
      {Fault::rounding, "sums", "added in f32 in rank order, rounded once"},
      {Fault::key, "split", "ordered by key"},
  };
  for (const auto& [fault, check, found] : cases) {
    INFO(check << ": " << found);
    register_relay("broken", fault);
    CommunicatorConformanceOptions options;
    options.name = "broken";
    options.ranks = {3};
    options.only = check;
    options.timeout = std::chrono::seconds(5);
    const auto report = communicator_conformance(options);
    CHECK_FALSE(report.passed());
    CHECK_THAT(report.to_string(),
               Catch::Contains("broken: " + std::string(check) + " on 3 ranks: rank ") && Catch::Contains(found));
  }
}

TEST_CASE("a back end by name: groups of it, the CPU's tensors only, and unknown names with all known ones",
          "[communicator]") {
  register_relay("relay", Fault::none);
  CHECK_NOTHROW(run_ranks({{"relay", "relay"}, 3}, [](Communicator& communicator) {
    require(communicator.backend() == "relay", "made by the program's factory");
    const auto half = communicator.split(communicator.rank() < 2 ? 0 : 1, 0);
    require(half->backend() == (communicator.rank() < 2 ? "relay" : "single"), "groups of it are, too");
    const auto tensor = at::ones({5});
    communicator.all_reduce(tensor);
    require(tensor[4].item<float>() == 3, "the sum");
  }));
  CommunicatorOptions options;
  options.backend = "rely";
  const auto known = refusal(options);
  CHECK_THAT(known, Catch::Contains("no such back end: 'rely'; use auto, shm, gloo, hierarchical, nccl") &&
                        Catch::Contains("relay"));
  CHECK(known.find('\n') == std::string::npos);
  options.backend = "relay";
  options.device = at::Device(at::kCUDA, 0);
  CHECK_THAT(refusal(options), Catch::Contains("back end relay moves tensors of the CPU"));
  register_communicator(
      "gpu_relay", "for a test", [](const CommunicatorOptions&) { return nullptr; }, TensorPlace::device);
  options.backend = "gpu_relay";
  options.device = at::kCPU;
  CHECK_THAT(refusal(options), Catch::Contains("back end gpu_relay moves tensors of a GPU"));
  CHECK_THROWS_WITH(register_communicator("none", "", nullptr), Catch::Contains("'none' has no factory"));
  CommunicatorConformanceOptions unknown;
  unknown.only = "all_redouce";
  CHECK_THROWS_WITH(communicator_conformance(unknown), Catch::Contains("known: all_reduce, many_chunks"));
}

TEST_CASE("ranks register and look up at the same time", "[communicator]") {
  Registry<int> registry{{{"shipped", "first"}, 0}};
  std::vector<std::thread> ranks;
  for (int r = 0; r < 4; ++r) {
    ranks.emplace_back([&registry, r] {
      for (int i = 0; i < 500; ++i) {
        registry.add("rank " + std::to_string(i % 50), "of " + std::to_string(r), i % 50);
        static_cast<void>(registry.find("rank " + std::to_string((i + 7) % 50)));
        static_cast<void>(registry.names());
      }
    });
  }
  for (auto& rank : ranks) rank.join();
  CHECK(registry.names().size() == 51);
  CHECK(registry.names()[0].name == "shipped");
  CHECK(registry.sorted_names()[0].name == "rank 0");
  CHECK(registry.find("rank 49") == 49);
  CHECK_FALSE(registry.find("rank 50"));
  registry.add("shipped", "replaced", 1);
  CHECK(registry.names()[0].description == "replaced");
  CHECK(registry.find("shipped") == 1);
  CHECK(name_list({{"a", ""}, {"b", ""}, {"c", ""}}, " or ") == "a, b or c");
  CHECK(name_list({{"a", ""}}) == "a");
}
