#include "launch/hosts/near_cpus.hpp"

#include <filesystem>
#include <thread>

#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;
using Catch::Contains;
using troupe::testing::ScratchDirectory;

namespace {

const char* const kAddress = "0000:18:00.0";

// A device's folder as the kernel makes it; without a text there is no such file.
NearCpus near_by(const std::optional<std::string>& list, const std::optional<std::string>& node,
                 const CpuList& allowed) {
  const ScratchDirectory devices;
  const auto folder = devices / kAddress;
  std::filesystem::create_directory(folder);
  if (list) testing::write_text(folder + "/local_cpulist", *list);
  if (node) testing::write_text(folder + "/numa_node", *node);
  return near_cpus(kAddress, allowed, devices.path());
}

}  // namespace

TEST_CASE("[L03] lists of CPUs are read as Linux writes them, and written alike") {
  const std::vector<std::pair<std::string, CpuList>> lists = {
      {"", {}},
      {"0", {0}},
      {"7\n", {7}},
      {"0-3", {0, 1, 2, 3}},
      {"0-2,8-10", {0, 1, 2, 8, 9, 10}},
      {"1,3,5", {1, 3, 5}},
      {"0-1,4,6-7", {0, 1, 4, 6, 7}},
      {"65535", {65535}},
  };
  for (const auto& [text, cpus] : lists) {
    INFO(text);
    REQUIRE(parse_cpu_list(text));
    CHECK(*parse_cpu_list(text) == cpus);
    CHECK(parse_cpu_list(cpu_list_text(cpus)) == cpus);
  }
  CHECK(cpu_list_text({0, 1, 4, 6, 7}) == "0-1,4,6-7");
  CHECK(parse_cpu_list("8,2-3,3,0") == CpuList{0, 2, 3, 8});
  CHECK(parse_cpu_list("\n") == CpuList{});
  CHECK(parse_cpu_list("5-5") == CpuList{5});
  for (const std::string bad : {"a", "-1", "1-", "-", "3-1", "1,,2", ",1", "1,", "0 1", "0x3", "1-2-3", "65536",
                                "0-99999999999999999999", "+1", "0-3:1/2"}) {
    INFO(bad);
    CHECK_FALSE(parse_cpu_list(bad));
  }
}

TEST_CASE("[L03] the CPUs near a GPU are those of its list that the process may use") {
  const auto near = near_by("0-3,32-35\n", "0\n", {2, 3, 4, 33});
  CHECK(near.cpus == CpuList{2, 3, 33});
  CHECK(near.problem.empty());
  CHECK(near_by("0-3", std::nullopt, {0, 9}).cpus == CpuList{0});  // a kernel without nodes
}

TEST_CASE("[L03] where the kernel does not say which CPUs are near a GPU, there are none, and a reason") {
  const auto why = [](const NearCpus& near) {
    CHECK(near.cpus.empty());
    return near.problem;
  };
  const CpuList allowed{0, 1, 2, 3};
  CHECK_THAT(why(near_by("0-3", "-1\n", allowed)), Contains("numa_node is -1"));
  CHECK_THAT(why(near_by(std::nullopt, "0", allowed)), Contains("local_cpulist cannot be read"));
  CHECK_THAT(why(near_by("", "0", allowed)), Contains("local_cpulist is empty"));
  CHECK_THAT(why(near_by("\n", "0", allowed)), Contains("local_cpulist is empty"));
  CHECK_THAT(why(near_by("0-", "0", allowed)), Contains("local_cpulist is no list of CPUs"));
  CHECK_THAT(why(near_by("8-15", "1", allowed)), Contains("has 8-15, and this process may use 0-3"));
  CHECK_THAT(why(near_cpus("", allowed)), Contains("PCI address"));
}

TEST_CASE("[L03] a thread is bound to CPUs with all that it starts, and the others are not") {
  const auto before = allowed_cpus();
  REQUIRE_FALSE(before.empty());
  std::thread([&] {
    bind_thread({before.back()});
    CHECK(allowed_cpus() == CpuList{before.back()});
    std::thread([&] { CHECK(allowed_cpus() == CpuList{before.back()}); }).join();
    CHECK_THROWS_AS(bind_thread({65'535}), Error);
  }).join();
  CHECK(allowed_cpus() == before);
}
