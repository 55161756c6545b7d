// What a process has once, with an accelerator that only stands for one (tests/support/fake_accelerator.hpp).
#include "launch/program/process_settings.hpp"

#include <filesystem>
#include <thread>

#include "launch/loop/rank.hpp"
#include "launch/process/rank_lines.hpp"
#include "tests/catch.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/fake_accelerator.hpp"
#include "tests/support/logged_lines.hpp"
#include "tests/support/scratch_directory.hpp"
#include "troupe/troupe.hpp"

using namespace troupe;
using Catch::Contains;
using troupe::testing::FakeAccelerator;
using troupe::testing::LoggedLines;
using troupe::testing::ScratchDirectory;

namespace {

class SquareData final : public Dataset {
 public:
  std::int64_t size() const override { return 24; }
  Example get(std::int64_t index, const SampleContext&) const override {
    return {at::full({3}, static_cast<double>(index) / 24, at::kFloat), at::full({}, index % 2, at::kLong)};
  }
};

int run_main(std::vector<std::string> words, const std::function<void(Rank&)>& body) {
  words.insert(words.begin(), {"program", "--save_every", "-1", "--run_dir", ""});
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  return troupe::main(static_cast<int>(arguments.size()), arguments.data(), body);
}

// Three steps of two ranks.
int train_three_steps(std::vector<std::string> words, const std::function<void(std::int64_t step)>& within = {}) {
  words.insert(words.end(), {"--ranks", "2", "--batch_size", "8", "--epochs", "1", "--device", "cpu"});
  return run_main(words, [&](Rank& rank) {
    auto model = rank.distribute([] { return torch::nn::Linear(3, 2); });
    const auto optimizer = rank.make_optimizer(*model);
    std::int64_t step = 0;
    for (const auto& batch : rank.loader(std::make_shared<SquareData>())) {
      const TraceSpan own("my own");
      const auto loss = torch::nn::functional::cross_entropy(model->forward(batch.input), batch.target);
      if (within) within(step);
      rank.backward(loss);
      (void)rank.step(*optimizer);
      ++step;
    }
  });
}

}  // namespace

TEST_CASE(
    "[T08] a training's spans are NVTX ranges with --nvtx on: steps, their phases, and the reducer's collectives") {
  FakeAccelerator gpus;
  auto& ranges = gpus.ranges();
  REQUIRE(train_three_steps({"--nvtx", "on"}) == 0);
  CHECK(ranges.balanced());
  const auto paths = ranges.paths();
  INFO(Catch::StringMaker<std::vector<std::string>>::convert(paths));
  for (const std::string step : {"0", "1", "2"}) {
    const auto within = "compute: / ProfilerStep#" + step;
    CHECK(ranges.count(within) == 2);  // ranks
    for (const std::string phase : {"data", "forward"}) CHECK(ranges.count(within + " / " + phase) == 2);
    CHECK(ranges.count(within + " / forward / my own") == 2);
    // The program's span goes on beyond forward, so what follows is within it.
    for (const std::string phase : {"backward", "wait for gradients", "vote", "optimizer"})
      CHECK(ranges.count(within + " / my own / " + phase) == 2);
    CHECK(ranges.count(within + " / my own / vote / all_gather (vote)") == 2);
  }
  CHECK(ranges.count("compute: / ProfilerStep#3") == 0);
  CHECK(ranges.count("reducer: / BucketReady / all_reduce (bucket 0)") == 6);
  CHECK(std::any_of(paths.begin(), paths.end(), [](const auto& path) { return path.ends_with("/ load batch"); }));
}

TEST_CASE("[T08] a training has no ranges unless a profiler has injected itself, or the setting asks for them") {
  FakeAccelerator gpus;
  auto& ranges = gpus.ranges();
  ::unsetenv("NVTX_INJECTION64_PATH");
  CHECK(train_three_steps({}) == 0);
  CHECK(train_three_steps({"--nvtx", "off"}) == 0);
  CHECK(ranges.calls() == 0);
  ::setenv("NVTX_INJECTION64_PATH", "/opt/profiler.so", 1);
  CHECK(train_three_steps({"--nvtx", "off"}) == 0);
  CHECK(ranges.calls() == 0);
  CHECK(train_three_steps({}) == 0);
  CHECK(ranges.count("compute: / ProfilerStep#2") == 2);
  ::unsetenv("NVTX_INJECTION64_PATH");
}

TEST_CASE("[T08] ranges are balanced on every thread of a training that ends by an exception") {
  FakeAccelerator gpus;
  CHECK(train_three_steps({"--nvtx", "on"}, [](std::int64_t step) {
          if (step == 1) throw std::runtime_error("forward of step 1");
        }) == 1);
  CHECK(gpus.ranges().count("compute: / ProfilerStep#1 / forward / my own") > 0);
  CHECK(gpus.ranges().balanced());
}

TEST_CASE("[T08] ranges are balanced where a rank dies, and its step comes again") {
  FakeAccelerator gpus;
  ::setenv("TROUPE_FAULT", "slot=1,step=1,at=backward,signal=9", 1);
  CHECK(train_three_steps({"--nvtx", "on"}) == 0);
  ::unsetenv("TROUPE_FAULT");
  CHECK(gpus.ranges().count("compute: / ProfilerStep#1") > 2);
  CHECK(gpus.ranges().count("compute: / ProfilerStep#2") == 2);
  CHECK(gpus.ranges().balanced());
}

TEST_CASE("[T08] NVTX's ranges are refused in a build without it, if they are asked for") {
  CHECK(wants_ranges("auto", "/opt/profiler.so", true));
  CHECK_FALSE(wants_ranges("auto", nullptr, true));
  CHECK_FALSE(wants_ranges("auto", "", true));
  CHECK_FALSE(wants_ranges("auto", "/opt/profiler.so", false));
  CHECK_FALSE(wants_ranges("off", "/opt/profiler.so", true));
  CHECK(wants_ranges("on", nullptr, true));
  CHECK_THAT(testing::error_of(ErrorCode::unavailable, [] { (void)wants_ranges("on", nullptr, false); }),
             Catch::StartsWith("nvtx: 'on' was asked for, but this program was built without CUDA"));
  CHECK(run_main({"--nvtx", "on"}, [](Rank&) {}) == exit_code(ErrorCode::unavailable));
}

TEST_CASE("[L03] with --bind_cpus node a rank and all that it starts run on the CPUs near its GPU") {
  const FakeAccelerator gpus("0000:18:00.0");
  const ScratchDirectory devices;
  std::filesystem::create_directory(devices / "0000:18:00.0");
  const auto before = allowed_cpus();
  const CpuList wanted{before.back()};
  const auto text = cpu_list_text(wanted);
  testing::write_text(devices / "0000:18:00.0/local_cpulist", text + "," + std::to_string(before.back() + 1) + "\n");
  testing::write_text(devices / "0000:18:00.0/numa_node", "0\n");
  Config config;
  LoggedLines lines;
  std::thread([&] {  // as a process: what is bound is the thread that calls, and its children
    set_line_taker(std::make_shared<LineTaker>([&](const std::string& line) { lines.add(line); }));
    CHECK(bind_to_device(config, {c10::kCUDA, 0}, devices.path()) == 0);
    CHECK(allowed_cpus() == before);
    CHECK(lines.all().empty());
    config.bind_cpus = "node";
    CHECK(bind_to_device(config, {c10::kCUDA, 0}, devices.path()) == 1);
    CHECK(lines.all() == "bind_cpus: CPUs " + text + ", near cuda:0 (0000:18:00.0)\n");
    CHECK(allowed_cpus() == wanted);
    std::thread([&] { CHECK(allowed_cpus() == wanted); }).join();
    auto* const child = ::popen("grep Cpus_allowed_list /proc/self/status", "r");
    REQUIRE(child != nullptr);
    char line[256] = "";
    CHECK(std::fgets(line, sizeof line, child) != nullptr);
    CHECK(::pclose(child) == 0);
    CHECK(line == "Cpus_allowed_list:\t" + text + "\n");
  })
      .join();
  CHECK(allowed_cpus() == before);
}

TEST_CASE(
    "[L03] --bind_cpus node is refused without a GPU of the process's own, and warns if the kernel knows no CPUs") {
  const FakeAccelerator gpus("ffff:ff:1f.7");
  Config config;
  config.bind_cpus = "node";
  CHECK_THAT(testing::error_of(ErrorCode::usage, [&] { (void)bind_to_device(config, c10::kCPU); }),
             Catch::StartsWith("bind_cpus: ") && Contains("trains on the CPU") && Contains("--device cuda"));
  config.ranks = 2;
  CHECK_THAT(testing::error_of(ErrorCode::usage,
                               [&] {
                                 (void)bind_to_device(config, {c10::kCUDA, 0});
                               }),
             Catch::StartsWith("bind_cpus: ") && Contains("--ranks") && Contains("troupe launch"));
  CHECK(run_main({"--bind_cpus", "node", "--device", "cpu"}, [](Rank&) {}) == exit_code(ErrorCode::usage));
  CHECK(run_main({"--bind_cpus", "node", "--ranks", "2"}, [](Rank&) {}) == exit_code(ErrorCode::usage));
  // Before a rank is there. This LibTorch knows no such device, so the rank ends then.
  const auto before = allowed_cpus();
  LoggedLines lines;
  set_line_taker(std::make_shared<LineTaker>([&](const std::string& line) { lines.add(line); }));
  CHECK(run_main({"--bind_cpus", "node", "--device", "cuda"}, [](Rank&) {}) != 0);
  set_line_taker(nullptr);
  CHECK_THAT(lines.all(),
             Contains("warning: bind_cpus: /sys/bus/pci/devices/ffff:ff:1f.7/local_cpulist cannot be read; "
                      "the process is not bound"));
  CHECK(allowed_cpus() == before);
}

TEST_CASE("[L03] LibTorch takes no more threads than a rank is bound to, unless the setting says how many") {
  const int before = at::get_num_threads();
  Config config;
  at::set_num_threads(3);
  apply_process_settings(config, false, 0);
  CHECK(at::get_num_threads() == 3);
  apply_process_settings(config, false, 4);
  CHECK(at::get_num_threads() == 3);
  apply_process_settings(config, false, 2);
  CHECK(at::get_num_threads() == 2);
  config.threads = 3;
  apply_process_settings(config, false, 2);
  CHECK(at::get_num_threads() == 3);
  at::set_num_threads(before);
}
