#include "tensor_io/layers/deferred_init.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "tensor_io/layers/deferred_fills.hpp"

namespace troupe {
namespace {

using torch::jit::Stack;

/// The operators that write values into their first argument and read no other tensor. `overwrites`: nor it.
struct Kind {
  std::string_view name;
  bool overwrites, draws;
};
constexpr std::array kKinds = {Kind{"aten::uniform_", true, true},     Kind{"aten::normal_", true, true},
                               Kind{"aten::random_", true, true},      Kind{"aten::bernoulli_", true, true},
                               Kind{"aten::log_normal_", true, true},  Kind{"aten::exponential_", true, true},
                               Kind{"aten::cauchy_", true, true},      Kind{"aten::geometric_", true, true},
                               Kind{"aten::zero_", true, false},       Kind{"aten::fill_", true, false},
                               Kind{"aten::mul_", false, false},       Kind{"aten::div_", false, false},
                               Kind{"aten::add_", false, false},       Kind{"aten::sub_", false, false},
                               Kind{"aten::erfinv_", false, false},    Kind{"aten::clamp_", false, false},
                               Kind{"aten::clamp_min_", false, false}, Kind{"aten::clamp_max_", false, false}};

// These make a tensor and call one of the above on it. Not zeros, ones and full: programs go on to write into those by
// address.
constexpr std::array<std::string_view, 2> kFactories = {"aten::randn", "aten::rand"};

// These read a tensor's description alone.
constexpr std::array<std::string_view, 9> kReadNoValues = {
    "aten::_has_compatible_shallow_copy_type",  // set_data asks it
    "aten::empty_like",
    "aten::zeros_like",
    "aten::ones_like",
    "aten::full_like",
    "aten::rand_like",
    "aten::randn_like",
    "aten::new_empty",
    "aten::new_zeros"};

template <class Names>
bool is_one_of(const Names& names, const c10::OperatorHandle& op) {
  return std::find(names.begin(), names.end(), op.schema().name()) != names.end();
}

template <class Visit>
void visit_tensors(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) visit(value.toTensor());
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  }
  if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      if (tensor) visit(*tensor);
    }
  }
}

const Kind* fill_kind(const c10::OperatorHandle& op, const Stack& stack, std::size_t begin) {
  const auto found =
      std::find_if(kKinds.begin(), kKinds.end(), [&](const auto& kind) { return kind.name == op.schema().name(); });
  if (found == kKinds.end()) return nullptr;
  std::size_t tensors = 0;
  for (auto i = begin; i < stack.size(); ++i) visit_tensors(stack[i], [&](const at::Tensor&) { ++tensors; });
  return tensors == 1 && stack[begin].isTensor() ? &*found : nullptr;
}

// Memory that LibTorch allocated for this tensor alone: not a file's or the program's own, which it may look into by
// other ways; and no view may be left that would not know. Later views inherit the key.
bool may_lose_its_memory(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.layout() == at::kStrided && tensor.device().is_cpu() &&
         tensor.storage().unsafeGetStorageImpl()->resizable() && tensor.storage().use_count() == 1 &&
         tensor.storage().nbytes() >= kLeastDeferredBytes;
}

bool covers_its_storage(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && tensor.nbytes() == tensor.storage().nbytes();
}

at::Tensor state_of(const c10::IValue& argument) {
  auto generator = argument.isGenerator() ? argument.toGenerator() : at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  return generator.get_state();
}

// Whether the call was written down instead of made.
bool write_down(const c10::OperatorHandle& op, Stack& stack, std::size_t begin) {
  const auto* kind = fill_kind(op, stack, begin);
  if (kind == nullptr) return false;
  const auto self = stack[begin].toTensor();
  if (at::GradMode::is_enabled() && self.requires_grad()) return false;  // LibTorch says why that is refused
  auto* tape = FillTape::of(self);
  const bool all = kind->overwrites && covers_its_storage(self);
  if (tape == nullptr && !(all && may_lose_its_memory(self))) return false;
  if (!all && tape->bytes() > self.storage().nbytes() / 4)
    return false;  // it would soon need more memory than the values
  Fill fill{op,
            Stack(stack.begin() + static_cast<std::ptrdiff_t>(begin) + 1, stack.end()),
            self.sizes().vec(),
            self.strides().vec(),
            self.storage_offset(),
            self.scalar_type(),
            {}};
  if (kind->draws) {
    auto& generator = fill.arguments[static_cast<std::size_t>(*op.schema().argumentIndexWithName("generator")) - 1];
    fill.generator_state = state_of(generator);
    generator = {};
    stack[begin] = scratch_like(self);
    op.callBoxed(stack);
  }
  torch::jit::drop(stack, stack.size() - begin);
  if (tape == nullptr) tape = &FillTape::begin(self);
  set_deferred_key(self, true);
  if (!self.is_inference()) self.unsafeGetTensorImpl()->bump_version();
  if (all) tape->clear();
  tape->add(std::move(fill));
  torch::jit::push(stack, self);
  return true;
}

// Every call of a thread in a scope, and every call with a tensor that was deferred.
void defer(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const auto& schema = op.schema();
  const auto begin = stack->size() - schema.arguments().size();
  if (c10::impl::tls_is_dispatch_key_included(kDeferredKey)) {
    const c10::impl::ExcludeDispatchKeyGuard not_again(kDeferredKey);
    if (write_down(op, *stack, begin)) return;
  }
  // Some operators are made of others that are to come here too: a view needs no values, unless it cannot be one and
  // copies (`to`, `reshape`, `contiguous`). The others' kernels read and write memory without asking.
  bool goes_on = is_one_of(kFactories, op);
  const bool reads = !is_one_of(kReadNoValues, op);
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    const bool is_view = alias != nullptr && !alias->isWrite();
    goes_on = goes_on || is_view;
    visit_tensors((*stack)[begin + i], [&](const at::Tensor& tensor) {
      if ((reads && !is_view) || !is_deferred(tensor)) materialize(tensor);
    });
  }
  std::optional<c10::impl::ExcludeDispatchKeyGuard> not_again;
  if (!goes_on) not_again.emplace(kDeferredKey);
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kDeferredKey), stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, DeferredInit, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&defer>()); }

DeferredInitScope::DeferredInitScope() : before_(c10::impl::tls_is_dispatch_key_included(kDeferredKey)) {
  c10::impl::tls_set_dispatch_key_included(kDeferredKey, true);
}
DeferredInitScope::~DeferredInitScope() { c10::impl::tls_set_dispatch_key_included(kDeferredKey, before_); }

bool is_deferred(const at::Tensor& tensor) { return FillTape::of(tensor) != nullptr; }

void materialize(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  if (const auto* tape = FillTape::of(tensor)) tape->play(tensor);
  set_deferred_key(tensor, false);
}

void materialize(const torch::nn::Module& model, c10::Device device) {
  const auto place = [&](const at::Tensor& tensor) {
    if (!is_deferred(tensor)) return materialize(tensor);
    materialize(tensor);
    if (tensor.device() != device) tensor.set_data(tensor.to(device));
  };
  for (const auto& parameter : model.parameters()) place(parameter);
  for (const auto& buffer : model.buffers()) place(buffer);
}

void move_to(torch::nn::Module& model, c10::Device device) {
  const auto parameters = model.parameters();
  if (std::none_of(parameters.begin(), parameters.end(), is_deferred)) return model.to(device);
  for (const auto& parameter : parameters) {
    if (!is_deferred(parameter)) parameter.set_data(parameter.to(device));
  }
  for (const auto& buffer : model.buffers()) buffer.set_data(buffer.to(device));
}

}  // namespace troupe
