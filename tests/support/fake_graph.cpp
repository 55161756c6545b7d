#include "tests/support/fake_graph.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>
#include <cstring>

#include "tests/support/fake_device.hpp"

namespace troupe::test {
namespace {

thread_local bool at_work = false;
std::atomic<int> replayed{0};

bool is_here(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == c10::DeviceType::PrivateUse1;
}

at::Tensor zeros_for(const at::Tensor& tensor) {
  if (!is_here(tensor)) return tensor;
  auto zeros = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options());
  if (zeros.numel() > 0) std::memset(zeros.data_ptr(), 0, zeros.nbytes());
  return zeros;
}

c10::IValue with_zeros(const c10::IValue& value) {
  if (value.isTensor()) return zeros_for(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(zeros_for(tensor));
    return list;
  }
  return value;
}

void spoil(const at::Tensor& tensor) {
  if (tensor.is_floating_point() && tensor.numel() > 0) std::memset(tensor.data_ptr(), 0xff, tensor.nbytes());
}

// The memory itself, whatever autograd thinks of the tensors.
void run(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const FakeGraph::AtWork work;
  const c10::impl::ExcludeDispatchKeyGuard below_autograd(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  at::native::cpu_fallback(op, &stack);
}

[[maybe_unused]] const bool has_graphs = [] {
  set_device_graphs(c10::DeviceType::PrivateUse1,
                    [](c10::Device) -> std::unique_ptr<DeviceGraph> { return std::make_unique<FakeGraph>(); });
  return true;
}();

}  // namespace

FakeGraph::AtWork::AtWork() : before_(std::exchange(at_work, true)) {}
FakeGraph::AtWork::~AtWork() { at_work = before_; }

FakeGraph* FakeGraph::under_way() {
  return at_work ? nullptr : static_cast<FakeGraph*>(graph_under_way(FakeDevice::device()));
}

void FakeGraph::refuse(const char* what) {
  TORCH_CHECK(false, what, ": operation not permitted when stream is capturing");
}

int FakeGraph::replays() { return replayed; }

void FakeGraph::write(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto count = schema.arguments().size();
  const torch::jit::Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  torch::jit::drop(*stack, count);
  torch::jit::Stack trial;
  for (const auto& argument : arguments) trial.push_back(with_zeros(argument));
  auto generator = at::detail::getDefaultCPUGenerator();  // the fallback draws from it, and now it only looks at shapes
  const auto state = generator.get_state();
  run(op, trial);
  generator.set_state(state);
  for (std::size_t r = 0; r < trial.size(); ++r) {
    const auto* alias = schema.returns()[r].alias_info();
    for (std::size_t i = 0; alias != nullptr && i < count; ++i) {
      const auto* other = schema.arguments()[i].alias_info();
      if (other != nullptr && *other == *alias) trial[r] = arguments[i];
    }
    if (alias == nullptr && trial[r].isTensor() && is_here(trial[r].toTensor())) spoil(trial[r].toTensor());
    stack->push_back(trial[r]);
  }
  add([op, arguments, results = trial, &schema] {
    auto again = arguments;
    run(op, again);
    const AtWork work;
    for (std::size_t r = 0; r < again.size(); ++r) {
      if (schema.returns()[r].alias_info() != nullptr || !again[r].isTensor() || !is_here(again[r].toTensor()))
        continue;
      results[r].toTensor().detach().copy_(again[r].toTensor());
    }
  });
}

void FakeGraph::mark(DeviceEvent& event) {
  TORCH_CHECK(event.native() != nullptr, "an event that was never recorded");
  add([&event] { event.record(DeviceStream::current(FakeDevice::device())); });
}

void FakeGraph::replay() {
  ++replayed;
  for (const auto& work : work_) work();
}

}  // namespace troupe::test
