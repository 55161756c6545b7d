#include "tensor_io/communicator/choice/device_selection.hpp"

#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"

using namespace troupe;

namespace {

std::string chosen(const std::string& device, const DeviceFacts& facts, const DevicePlace& place, bool share = false) {
  CommunicatorSettings settings;
  settings.device = device;
  settings.share_device = share;
  try {
    return choose_device(settings, facts, place).str();
  } catch (const Error& error) {
    return std::to_string(exit_code(error.code())) + ": " + error.what();
  }
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("[L03] a rank's device is that of its local rank, the CPU where there is none") {
  const DeviceFacts none{false, 0, "this program was built without CUDA"}, four{true, 4, ""};
  CHECK((chosen("auto", none, {0, 2}) == "cpu"));
  CHECK((chosen("cpu", four, {0, 2}) == "cpu"));
  CHECK((chosen("auto", four, {3, 4}) == "cuda:3"));
  CHECK((chosen("cuda", four, {1, 2}) == "cuda:1"));
  CHECK((chosen("cuda:2", four, {0, 1}) == "cuda:2"));
}

TEST_CASE("[L03] a device that is not there is a clear error, with the reason") {
  const auto no_build = chosen("cuda", {false, 0, "this program was built without CUDA"}, {});
  CHECK(says(no_build, "69: "));
  CHECK(says(no_build, "built without CUDA"));
  CHECK(says(no_build, "./dev build cuda"));
  const auto no_driver = chosen("cuda:0", {true, 0, "CUDA: no driver"}, {});
  CHECK(says(no_driver, "CUDA: no driver"));
  CHECK(says(no_driver, "nvidia-smi"));
  CHECK(says(chosen("cuda:4", {true, 4, ""}, {}), "2: device: 'cuda:4' does not exist: this machine has 4 devices"));
  for (const auto* word : {"gpu", "cuda:", "cuda:x", "cuda:1x", "cuda:-1", "cuda:999", "", "CPU"}) {
    CHECK(says(chosen(word, {true, 4, ""}, {}), "is not a device; use auto, cpu, cuda, or cuda:N"));
    CHECK(says(chosen(word, {false, 0, ""}, {}), "is not a device; use auto, cpu, cuda, or cuda:N"));
  }
}

TEST_CASE("[L03] more ranks than devices is an error that says the numbers, unless they may share") {
  const DeviceFacts two{true, 2, ""};
  const auto crowded = chosen("auto", two, {3, 4});
  CHECK(says(crowded, "2: device: 4 ranks on this host would share 2 devices"));
  CHECK(says(crowded, "--share_device"));
  CHECK(says(chosen("cuda:1", two, {0, 2}), "2 ranks on this host would share one device, cuda:1"));
  CHECK((chosen("auto", two, {3, 4}, true) == "cuda:1"));
  CHECK((chosen("cuda:1", two, {0, 4}, true) == "cuda:1"));
}

TEST_CASE("[L03] processes that see one device each take it: NCCL knows whether it is the same one") {
  const DeviceFacts one{true, 1, ""};
  CHECK((chosen("auto", one, {3, 4}) == "cuda:0"));
  CHECK((chosen("cuda:0", one, {3, 4}) == "cuda:0"));
  CHECK((chosen("auto", one, {1, 2, true}) == "cpu"));
}

TEST_CASE("[L03] simulated ranks have devices of their own, or none") {
  const DeviceFacts two{true, 2, ""};
  CHECK((chosen("auto", two, {1, 2, true}) == "cuda:1"));
  CHECK((chosen("auto", two, {3, 4, true}) == "cpu"));
  CHECK(says(chosen("cuda", two, {3, 4, true}, true), "use troupe launch"));
}
