#include "tensor_io/layers/deferred_fills.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>

#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

void delete_tape(void* tape) { delete static_cast<FillTape*>(tape); }

c10::StorageImpl& storage_of(const at::Tensor& tensor) { return *tensor.storage().unsafeGetStorageImpl(); }

// LibTorch can make a storage refuse to tell its address, and cannot take that back. It has no public way, so this is
// the language's one to a private member: an explicit instantiation may name it.
template <bool c10::StorageImpl::*Member>
struct RefusalOf {
  friend bool& refuses_address(c10::StorageImpl& storage) { return storage.*Member; }
};
template struct RefusalOf<&c10::StorageImpl::throw_on_immutable_data_ptr_>;
bool& refuses_address(c10::StorageImpl& storage);

// Pages of its own, that are given back at once: in the heap they would stay behind what is made in between.
at::DataPtr mapped(std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(ErrorCode::unavailable, "deferred initialisation",
                "there is no memory for " + std::to_string(bytes) + " bytes");
  }
  struct Mapping {
    void* memory;
    std::size_t bytes;
  };
  return {memory, new Mapping{memory, bytes},
          [](void* context) {
            const std::unique_ptr<Mapping> mapping(static_cast<Mapping*>(context));
            ::munmap(mapping->memory, mapping->bytes);
          },
          at::Device(at::kCPU)};
}

// A tensor whose storage is mapped memory of the size of another's.
at::Tensor mapped_like(const c10::StorageImpl& storage, at::ScalarType dtype) {
  auto tensor = at::empty({0}, at::TensorOptions().dtype(dtype));
  storage_of(tensor).set_data_ptr_noswap(mapped(storage.nbytes()));
  storage_of(tensor).set_nbytes(storage.nbytes());
  return tensor;
}

// The key is LibTorch's own to set; a derived class may.
struct KeySet : c10::TensorImpl {
  static auto member() { return &KeySet::key_set_; }
};

}  // namespace

FillTape* FillTape::of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const auto& data = storage_of(tensor)._mutable_data_ptr_no_checks();
  return data.get_deleter() == &delete_tape ? static_cast<FillTape*>(data.get_context()) : nullptr;
}

FillTape& FillTape::begin(const at::Tensor& tensor) {
  auto tape = std::make_unique<FillTape>();
  auto& storage = storage_of(tensor);
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
      "this tensor has no memory yet, since deferred initialisation gives a model its values later: call "
      "troupe::materialize(tensor) "
      "before its address is taken");
  auto* begun = tape.get();
  storage.set_data_ptr_noswap({nullptr, tape.release(), &delete_tape, at::Device(at::kCPU)});
  return *begun;
}

void FillTape::add(Fill fill) {
  bytes_ += sizeof fill + (fill.generator_state.defined() ? fill.generator_state.nbytes() : 0);
  fills_.push_back(std::move(fill));
}

void FillTape::play(const at::Tensor& tensor) const {
  const c10::impl::ExcludeDispatchKeyGuard really(kDeferredKey);
  const at::NoGradGuard no_grad;
  auto& storage = storage_of(tensor);
  const auto made = mapped_like(storage, at::kByte);
  for (const auto& fill : fills_) {
    torch::jit::Stack stack{at::empty({0}, at::TensorOptions().dtype(fill.dtype))
                                .set_(made.storage(), fill.offset, fill.sizes, fill.strides)};
    stack.insert(stack.end(), fill.arguments.begin(), fill.arguments.end());
    if (fill.generator_state.defined()) {
      auto generator = at::detail::createCPUGenerator();
      generator.set_state(fill.generator_state);
      stack[static_cast<std::size_t>(*fill.op.schema().argumentIndexWithName("generator"))] = std::move(generator);
    }
    fill.op.callBoxed(stack);
  }
  refuses_address(storage) = false;
  storage.set_data_ptr_noswap(std::move(storage_of(made)._mutable_data_ptr_no_checks()));  // deletes this
}

at::Tensor scratch_like(const at::Tensor& tensor) {
  const auto memory = mapped_like(storage_of(tensor), tensor.scalar_type());
  return memory.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

void set_deferred_key(const at::Tensor& tensor, bool deferred) {
  auto& keys = tensor.unsafeGetTensorImpl()->*KeySet::member();
  if (keys.has(kDeferredKey) != deferred) keys = deferred ? keys.add(kDeferredKey) : keys.remove(kDeferredKey);
}

}  // namespace troupe
