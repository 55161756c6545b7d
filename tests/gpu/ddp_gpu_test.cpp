// Training on the device beside training on the CPU.
#include "tensor_io/device/device_stream.hpp"
#include "tests/gpu/gpu.hpp"
#include "tests/gpu/paced_device.hpp"
#include "tests/support/small_training.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

SmallTraining::Result train_there(at::Device device, int ranks, std::int64_t* waits_per_step = nullptr,
                                  bool graphs = false, std::shared_ptr<NcclApi> nccl = nullptr) {
  SmallTraining training("ddp", ranks);
  training.steps = 50;
  training.optimizer.momentum = 0.9;
  training.jobs.options.device = device;
  training.jobs.options.training.verify_every = 0;
  training.jobs.options.training.cuda_graphs = graphs;
  if (nccl) {
    training.jobs.options.communicator.backend = "nccl";
    training.jobs.options.nccl = std::move(nccl);
  }
  training.model = [make = training.model, device] {
    auto model = make();
    model->to(device);
    return model;
  };
  training.forward = [device](torch::nn::Module& model, const at::Tensor& input) {
    return dynamic_cast<SmallMlpImpl&>(model).forward(input.to(device));
  };
  std::int64_t before = 0;
  training.before_step = [&](RankSystem&, torch::nn::Module&, std::int64_t step) {
    if (step == 10) before = host_waits();
  };
  training.at_end = [&](RankSystem& system, Optimizer&) {
    CHECK(system.compute().graphs_written() == (graphs ? 1 : 0));
    if (waits_per_step != nullptr) *waits_per_step = (host_waits() - before) / 40;
  };
  return training.run();
}

}  // namespace

TEST_CASE("[L03] gpu: ddp trains to the CPU's losses, with one wait of the host in a step", "[gpu][ddp]") {
  troupe::test::need_devices(1);
  std::int64_t waits = 0;
  const auto cpu = train_there(at::kCPU, 1), device = train_there({at::kCUDA, 0}, 1, &waits);
  CHECK(joined(device.errors) == "");
  CHECK(largest_difference(cpu.losses, device.losses) < 1e-4);
  CHECK(waits == 1);
  const auto again = train_there({at::kCUDA, 0}, 1);
  CHECK(largest_difference(device.state, again.state) == 0);
}

TEST_CASE("[L03] gpu: steps that are CUDA graphs have the bits of their kernels, and one wait of the host",
          "[gpu][ddp]") {
  troupe::test::need_devices(1);
  std::int64_t waits = 0;
  const auto kernels = train_there({at::kCUDA, 0}, 1), graphs = train_there({at::kCUDA, 0}, 1, &waits, true);
  CHECK(joined(graphs.errors) == "");
  CHECK(largest_difference(kernels.losses, graphs.losses) == 0);
  CHECK(largest_difference(kernels.state, graphs.state) == 0);
  CHECK(waits == 1);
  const auto again =
      train_there({at::kCUDA, 0}, 1, nullptr, true);  // the first one's graphs are gone, and their memory
  CHECK(joined(again.errors) == "");
  CHECK(largest_difference(graphs.state, again.state) == 0);
}

// A copy to and fro: one that began before its bucket was whole brings back what the bucket held before.
TEST_CASE("[L03] gpu: collectives that take their time see the whole buckets of a graph", "[gpu][ddp]") {
  troupe::test::need_devices(1);
  const auto paced = troupe::test::PacedDevice::create();
  troupe::test::PacedDevice::Pace pace;
  pace.bytes_per_s = 100e6;
  pace.latency_s = 200e-6;
  paced->set_pace(pace);
  const auto nccl = std::make_shared<troupe::test::PacedNccl>(paced);
  std::int64_t waits = 0;
  const auto kernels = train_there({at::kCUDA, 0}, 1);
  const auto graphs = train_there({at::kCUDA, 0}, 1, &waits, true, nccl);
  CHECK(joined(graphs.errors) == "");
  CHECK(paced->spans().count > 0);
  CHECK(largest_difference(kernels.losses, graphs.losses) == 0);
  CHECK(largest_difference(kernels.state, graphs.state) == 0);
  CHECK(waits == 1);
}

TEST_CASE("[L03] gpu: a value that forward reads can't be a part of a graph, and is said", "[gpu][ddp]") {
  troupe::test::need_devices(1);
  SmallTraining training("ddp", 1);
  training.steps = 6;
  training.jobs.options.device = {at::kCUDA, 0};
  training.jobs.options.training.cuda_graphs = true;
  training.model = [make = training.model] {
    auto model = make();
    model->to(at::Device(at::kCUDA, 0));
    return model;
  };
  training.forward = [](torch::nn::Module& model, const at::Tensor& input) {
    const auto x = dynamic_cast<SmallMlpImpl&>(model).forward(input.to(at::Device(at::kCUDA, 0)));
    return x * (x.sum().item<double>() > 0 ? 1 : 2);
  };
  CHECK_THAT(joined(training.run().errors),
             Catch::Contains("cuda_graphs: forward or backward does something that a graph can't capture") &&
                 Catch::Contains("captur"));
}
