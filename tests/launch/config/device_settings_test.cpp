#include "launch/config/device_settings.hpp"

#include "tests/catch.hpp"

using namespace troupe;

namespace {

std::string refused_there(const std::function<void(Config&)>& change, c10::Device device) {
  Config config;
  change(config);
  try {
    check_device_settings(config, device);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("[L03] what does not go together on a GPU is refused by its setting's name, and only there") {
  const c10::Device gpu(c10::kCUDA, 1), cpu(c10::kCPU);
  for (const std::string works : {"fp16", "bf16", "powersgd"})
    CHECK(refused_there([&](Config& c) { c.comm_hook = works; }, gpu).empty());
  CHECK(refused_there([](Config& c) { c.switch_at = "9:diloco"; }, gpu).empty());
  CHECK(refused_there([](Config& c) { c.sync_batchnorm = true, c.activation_checkpointing = "block"; }, gpu).empty());
  CHECK(refused_there([](Config& c) { c.strategy = "my_own"; }, gpu).empty());
  for (const std::string works : {"pipeline", "tensor_parallel", "parameter_server"})
    CHECK(refused_there([&](Config& c) { c.strategy = works; }, gpu).empty());
  for (const std::string cuts : {"pipeline", "tensor_parallel"}) {
    const auto offloads = [&](Config& c) { c.strategy = cuts, c.fsdp_cpu_offload = true; };
    CHECK_THAT(refused_there(offloads, gpu), Catch::StartsWith("fsdp_cpu_offload: strategy " + cuts));
    CHECK(refused_there(offloads, cpu).empty());
  }
  for (const std::string works : {"ddp", "fsdp", "zero1", "zero2", "local_sgd", "diloco"}) {
    CHECK(refused_there([&](Config& c) { c.strategy = works, c.fsdp_cpu_offload = true; }, gpu).empty());
  }
}
