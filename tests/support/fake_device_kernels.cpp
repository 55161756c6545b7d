// The fake device's operators: memory, views and copies here, all else on the CPU by LibTorch's own fallback. So whole
// steps run on it.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/library.h>

#include <new>

#include "tests/support/fake_device.hpp"
#include "tests/support/fake_graph.hpp"

namespace troupe::test {
namespace {

constexpr std::size_t kHead = 64;  // before the tensor's: how many bytes that has

void free_memory(void* data) {
  if (data == nullptr) return;
  auto* const head = static_cast<char*>(data) - kHead;
  const auto bytes = *reinterpret_cast<std::size_t*>(head);
  FakeDevice::forget_memory(data, bytes);
  FakeDevice::note_bytes(-static_cast<std::int64_t>(bytes));
  ::operator delete (head, std::align_val_t{kHead});
}

class FakeMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    FakeDevice::note_allocation(static_cast<std::int64_t>(bytes));
    auto* head = static_cast<char*>(::operator new (kHead + bytes, std::align_val_t{kHead}));
    *reinterpret_cast<std::size_t*>(head) = bytes;
    FakeDevice::note_bytes(static_cast<std::int64_t>(bytes));
    auto* data = head + kHead;
    return {data, data, &free_memory, FakeDevice::device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_memory; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { FakeDevice::empty_cache(); }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.active_bytes[0].peak = FakeDevice::most_bytes();
    stats.reserved_bytes[0].peak = 2 * FakeDevice::most_bytes();
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
};

FakeMemory fake_memory;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &fake_memory)

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &fake_memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      size, stride, &fake_memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype.value_or(at::kFloat));
}

// The host's view of a tensor's memory.
at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), at::TensorOptions().dtype(tensor.dtype()));
}

void note_access(const at::Tensor& tensor, bool writes) {
  if (tensor.is_cpu() || tensor.numel() == 0) return;
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  FakeDevice::note_access(tensor.data_ptr(), static_cast<std::size_t>(last + 1) * tensor.element_size(), writes);
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  if (auto* graph = FakeGraph::under_way()) {
    if (from.is_cpu() || to.is_cpu()) FakeGraph::refuse("a copy between host and device");
    graph->add([from, to] { copy_from(from, to, false); });
    return to;
  }
  note_access(from, false);
  note_access(to, true);
  FakeDevice::note_copy();
  on_host(to).copy_(on_host(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) {
    const auto fresh = at::empty(from.sizes(), to.options());
    to.unsafeGetTensorImpl()->set_storage_keep_dtype(fresh.storage());
    to.unsafeGetTensorImpl()->set_sizes_and_strides(fresh.sizes(), fresh.strides(), 0);
  }
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  if (FakeGraph::under_way() != nullptr) FakeGraph::refuse("item");
  FakeDevice::note_item();
  return on_host(tensor).item();
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, std::int64_t offset, c10::IntArrayRef size,
                        c10::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, source, offset, size, stride);
}

// So that a module's `to` moves it here.
bool is_compatible(const at::Tensor&, const at::Tensor&) { return true; }

// By the device's own generator, as a GPU's.
at::Tensor& bernoulli(at::Tensor& self, double p, std::optional<at::Generator> generator) {
  if (auto* graph = FakeGraph::under_way()) {
    graph->add([self, p, generator]() mutable { bernoulli(self, p, generator); });
    return self;
  }
  note_access(self, true);
  on_host(self).bernoulli_(p, generator ? *generator : at::globalContext().defaultGenerator(FakeDevice::device()));
  return self;
}

// What autograd and random numbers ask of an accelerator.
class FakeHooks final : public at::PrivateUse1HooksInterface {
 public:
  void init() const override {}
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const auto generator = at::detail::createCPUGenerator();
    return generator;
  }
};

[[maybe_unused]] const bool is_registered = [] {
  c10::register_privateuse1_backend("fake");
  at::RegisterPrivateUse1HooksInterface(new FakeHooks);
  return true;
}();

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto* const graph = FakeGraph::under_way();
  graph == nullptr ? at::native::cpu_fallback(op, stack) : graph->write(op, stack);
}

}  // namespace

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, std::int64_t groups) {
  const auto here = bias && bias->defined() ? std::optional(bias->cpu()) : std::nullopt;
  return at::convolution(input.cpu(), weight.cpu(), here, stride, padding, dilation, transposed, output_padding, groups)
      .to(FakeDevice::device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(const at::Tensor& gradient, const at::Tensor& input,
                                                                    const at::Tensor& weight, at::IntArrayRef stride,
                                                                    at::IntArrayRef padding, at::IntArrayRef dilation,
                                                                    bool transposed, at::IntArrayRef output_padding,
                                                                    std::int64_t groups, std::array<bool, 3> wanted) {
  const auto all = at::convolution_backward(gradient.cpu(), input.cpu(), weight.cpu(), weight.size(0), stride, padding,
                                            dilation, transposed, output_padding, groups, wanted);
  const auto there = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.to(FakeDevice::device()) : tensor;
  };
  return {there(std::get<0>(all)), there(std::get<1>(all)), there(std::get<2>(all))};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("bernoulli_.float", &bernoulli);
  m.impl("_has_compatible_shallow_copy_type", &is_compatible);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

// Of what LibTorch casts on CPUs, the layers that tests have; layer_norm as on CUDA, since the fallback takes one type.
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp);
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp);
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp);
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp);
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp);
  KERNEL_PRIVATEUSEONE(conv2d, lower_precision_fp);
  KERNEL_PRIVATEUSEONE(conv2d, padding, lower_precision_fp);
  KERNEL_PRIVATEUSEONE(layer_norm, fp32);
  KERNEL_PRIVATEUSEONE(mse_loss, fp32);
  KERNEL_PRIVATEUSEONE(nll_loss, fp32);
  KERNEL_PRIVATEUSEONE(cross_entropy_loss, fp32);
  KERNEL_PRIVATEUSEONE(cat, promote);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>()); }

}  // namespace troupe::test
