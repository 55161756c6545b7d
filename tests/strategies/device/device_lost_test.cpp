// A rank whose device has failed: what its process ends with, and that another one takes its place.
#include <c10/core/AutogradState.h>

#include <atomic>
#include <map>

#include "tensor_io/memory/failure_report.hpp"
#include "tests/catch.hpp"
#include "tests/support/count_of.hpp"
#include "tests/support/fake_device.hpp"
#include "tests/support/limited_nccl.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/small_training.hpp"

using namespace troupe;
using namespace troupe::testing;
using troupe::test::FakeDevice;

namespace {

constexpr std::int64_t kJobSteps = 8, kFailsAt = 3;

struct LosingLayerImpl : torch::nn::Module {
  at::Tensor weight = register_parameter("weight", torch::full({8, 1}, 0.1).to(FakeDevice::device()));
};

struct EndedJob {
  std::map<std::int64_t, double> losses;             // rank 0's
  std::map<int, std::vector<ErrorReport>> failures;  // of each slot's lives
  int status = -1;
  std::string log;
  std::int64_t buckets = 0;  // bytes of NCCL's memory when the device failed
};

// Two ranks, and how rank 1 loses its device: not at all, in the first life, in each.
enum class Fails { never, once, always };
EndedJob lose_device(Fails fails, bool recovery) {
  FakeDevice::reset();
  Config config;
  config.strategy = "ddp";
  config.collective_timeout = 20;
  config.ranks = 2;
  auto simulation = testing::simulation_of(config);
  simulation.rank.device = FakeDevice::device();
  simulation.rank.nccl = std::make_shared<troupe::test::LimitedNccl>();
  simulation.recovery.enabled = recovery;
  simulation.recovery.replace_timeout = std::chrono::seconds(60);  // as many ranks as before
  EndedJob ended;
  std::mutex mutex;
  simulation.log = [&](const std::string& line) {
    std::lock_guard lock(mutex);
    ended.log += line + "\n";
  };
  std::atomic<int> failures{0};
  const auto body = [&](Rank& rank) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    const auto model = std::make_shared<LosingLayerImpl>();
    rank.distribute(model);
    auto optimizer = rank.make_optimizer(*model);
    auto& compute = system_of(rank).compute();
    while (compute.steps_done() < kJobSteps) {
      const auto step = compute.steps_done();
      const bool hurts = fails == Fails::always || (fails == Fails::once && failures == 0);
      if (rank.rank() == 1 && step == kFailsAt && hurts) {
        ++failures;
        ended.buckets = FakeDevice::most_beside();
        FakeDevice::fail_here();
        TORCH_CHECK(false, "CUDA error: an illegal memory access was encountered");
      }
      const auto input = small_batch(step).first.narrow(0, 8 * rank.rank(), 8).to(FakeDevice::device());
      rank.backward(input.matmul(model->weight).square().mean(), 8, 1);
      const auto report = rank.step(*optimizer);
      if (report.repeat || report.pending || rank.rank() != 0) continue;
      std::lock_guard lock(mutex);
      ended.losses[report.step] = report.loss;
    }
  };
  ended.status = testing::run_simulation(config, simulation, body, [&](int slot, const ErrorReport& report) {
    ended.failures[slot].push_back(report);
    ended.log += "slot " + std::to_string(slot) + ": " + report.to_string() + "\n";
  });
  return ended;
}

}  // namespace

TEST_CASE("[L03] fault 24: a rank whose device has failed is replaced, and the job ends as if nothing had happened") {
  const auto wanted = lose_device(Fails::never, true);
  const auto found = lose_device(Fails::once, true);
  INFO(found.log);
  REQUIRE(wanted.status == 0);
  CHECK(found.status == 0);
  CHECK((found.losses == wanted.losses));
  REQUIRE((found.failures.size() == 1));
  REQUIRE((found.failures.at(1).size() == 1));
  CHECK((found.failures.at(1)[0].code == ErrorCode::device_lost));
  // The survivor's old buckets had gone before it had new ones.
  CHECK(found.buckets > 0);
  CHECK(FakeDevice::most_beside() == found.buckets);
  // The news of rank 1 may come behind that of a survivor's broken collective, which then is what interrupts.
  const std::string cause = "the device has failed: CUDA error: an illegal memory access was encountered";
  CHECK_THAT(found.log, Catch::Contains("generation 1 is interrupted: rank 1 died (" + cause + ")\n") ||
                            Catch::Contains("rank 1 is killed: " + cause + "\n"));
  CHECK(count_of(found.log, "is interrupted") == 1);
}

TEST_CASE("[L03] a device that fails in the same step of two lives ends the job: a kernel's own fault comes again") {
  const auto found = lose_device(Fails::always, true);
  INFO(found.log);
  CHECK(found.status == exit_code(ErrorCode::device_lost));
  CHECK((found.failures.at(1).size() == 2));
}

TEST_CASE("[L03] without recovery a device that has failed ends the job with 70, and the report says so") {
  const auto found = lose_device(Fails::once, false);
  CHECK(found.status == exit_code(ErrorCode::device_lost));
  REQUIRE((found.failures.at(1).size() == 1));
  const auto& report = found.failures.at(1)[0];
  CHECK((report.code == ErrorCode::device_lost));
  CHECK_THAT(report.to_string(), Catch::StartsWith("rank 1, compute, step 3: the device has failed: CUDA error: an "
                                                   "illegal memory access was encountered; look for the device"));
  CHECK_THAT(found.failures.at(0)[0].to_string(), Catch::Contains("the device has failed"));
}

TEST_CASE("[L03] an error of LibTorch on a device that still answers is the program's") {
  FakeDevice::reset();
  try {
    TORCH_CHECK(false, "sizes do not match");
  } catch (const std::exception& error) {
    CHECK((failure_report(error, FakeDevice::device(), {.code = ErrorCode::user}).code == ErrorCode::user));
    FakeDevice::fail();
    const auto lost = failure_report(error, FakeDevice::device(), {.code = ErrorCode::user});
    CHECK((lost.code == ErrorCode::device_lost));
    CHECK(lost.cause == "the device has failed: sizes do not match");
    CHECK((failure_report(error, at::kCPU, {.code = ErrorCode::user}).code == ErrorCode::user));
  }
  FakeDevice::reset();
}
