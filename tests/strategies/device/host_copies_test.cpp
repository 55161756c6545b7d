// Copies from a device, without one: the fake device's copies are done when the host has waited for them.
#include "tensor_io/device/host_copies.hpp"

#include "actors/recovery/heal.hpp"
#include "tests/catch.hpp"
#include "tests/support/fake_device.hpp"

using namespace troupe;
using troupe::test::FakeDevice;

TEST_CASE("[L03] copies from a device are waited for once") {
  FakeDevice::reset();
  const auto first = torch::randn({3, 4}), second = torch::arange(5);
  const auto memory = HostCopies::memory(first.nbytes() + second.nbytes(), FakeDevice::device());
  const auto to_first = memory.narrow(0, 0, 48).view(at::kFloat).view({3, 4}),
             to_second = memory.narrow(0, 48, 40).view(at::kLong);
  const auto waits = host_waits();
  HostCopies copies;
  copies.add(to_first, first.to(FakeDevice::device()));
  copies.add(to_second, second.to(FakeDevice::device()));
  copies.wait();
  CHECK(host_waits() == waits + 1);
  CHECK(torch::equal(to_first, first));
  CHECK(torch::equal(to_second, second));
  copies.wait();  // of nothing
  CHECK(host_waits() == waits + 1);
  copies.add(to_first, first);  // on the host already
  copies.wait();
  CHECK(host_waits() == waits + 1);
}

TEST_CASE("[L03] tensors of a device are hashed there, with one wait, and each bit counts") {
  FakeDevice::reset();
  const auto hash_of = [](const std::vector<at::Tensor>& tensors) {
    NamedTensors named;
    for (const auto& tensor : tensors) named.emplace_back("t" + std::to_string(named.size()), tensor);
    return hash_tensors(named);
  };
  const auto a = torch::randn({100}), b = torch::randn({7});
  auto changed = b.clone();
  changed.view(at::kInt)[6].bitwise_xor_(1);
  const auto on = [](const at::Tensor& tensor) { return tensor.to(FakeDevice::device()); };
  const auto waits = host_waits();
  const auto there = hash_of({on(a), on(b)});
  CHECK(host_waits() == waits + 1);
  CHECK(there == hash_of({on(a), on(b)}));
  CHECK(there != hash_of({on(b), on(a)}));
  CHECK(there != hash_of({on(a), on(changed)}));
  CHECK(hash_of({a, b}) == hash_of({a, b}));
  CHECK(hash_of({a, b}) != hash_of({a, changed}));
}
