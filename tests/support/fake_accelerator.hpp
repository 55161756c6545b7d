#pragma once
#include <stdexcept>
#include <string>

#include "tensor_io/device/accelerator.hpp"
#include "tests/support/noted_ranges.hpp"

namespace troupe::testing {

/// Stands for a build with CUDA while it lives: a device at a place on the PCI bus, and ranges that are noted. It
/// computes nothing.
class FakeAccelerator final : public Accelerator {
 public:
  explicit FakeAccelerator(std::string address = {}) : address_(std::move(address)) { set_accelerator(this); }
  FakeAccelerator(const FakeAccelerator&) = delete;
  ~FakeAccelerator() override { set_accelerator(nullptr); }

  int device_count() override { return 1; }
  std::string problem() override { return {}; }
  std::string versions() override { return "fake"; }
  std::string device_name(int) override { return "fake"; }
  std::string pci_address(int) override { return address_; }
  NotedRanges& ranges() override { return ranges_; }
  std::shared_ptr<NcclApi> nccl() override { return nullptr; }
  void watch_memory() override {}
  at::Tensor pinned(std::int64_t) override { refuse(); }
  std::unique_ptr<DeviceGraph> make_graph(at::Device) override { refuse(); }
  void pack(const at::Tensor&, std::span<const at::Tensor>, std::span<const std::int64_t>, double) override {
    refuse();
  }
  void scale_and_check(const at::Tensor&, double, const at::Tensor&) override { refuse(); }
  void hash_bytes(const at::Tensor&, const at::Tensor&) override { refuse(); }
  void dropout_mask(const at::Tensor&, std::uint64_t, const DropoutKey&, std::uint64_t) override { refuse(); }

 private:
  [[noreturn]] static void refuse() { throw std::logic_error("a fake accelerator computes nothing"); }
  const std::string address_;
  NotedRanges ranges_;
};

}  // namespace troupe::testing
