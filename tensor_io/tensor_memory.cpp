#include "tensor_io/tensor_memory.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <malloc.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace troupe {
namespace {

constexpr std::size_t kAlignment = 64;  // LibTorch's own: of a cache line and an AVX-512 register

// Before a block stands the address that malloc gave.
void release(void* data) {
  if (data == nullptr) return;
  c10::profiledCPUMemoryReporter().Delete(data);
  std::free(static_cast<void**>(data)[-1]);  // NOLINT(cppcoreguidelines-no-malloc): this is an allocator
}

class MallocAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* data = nullptr;
    if (bytes > 0) {
      // NOLINTNEXTLINE(cppcoreguidelines-no-malloc)
      void* given = bytes <= SIZE_MAX - kAlignment - sizeof(void*) ? std::malloc(bytes + kAlignment + sizeof(void*)) : nullptr;
      if (given == nullptr) c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
      TORCH_CHECK_WITH(OutOfMemoryError, given != nullptr, "can't allocate memory: you tried to allocate ", bytes, " bytes");
      const auto first = reinterpret_cast<std::uintptr_t>(given) + sizeof(void*);
      data = reinterpret_cast<void*>((first + kAlignment - 1) / kAlignment * kAlignment);
      static_cast<void**>(data)[-1] = given;
      c10::profiledCPUMemoryReporter().New(data, bytes);
    }
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace

void take_tensors_from_malloc() {
  static auto* const allocator = new MallocAllocator;  // tensors may be made until the process is gone
  c10::SetCPUAllocator(allocator);
}

void keep_freed_memory() {
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose malloc is another
  take_tensors_from_malloc();
  const char* tunables = std::getenv("GLIBC_TUNABLES");
  if (tunables != nullptr && std::string_view(tunables).find("glibc.malloc") != std::string_view::npos) return;
  if (std::getenv("MALLOC_TRIM_THRESHOLD_") == nullptr) ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  if (std::getenv("MALLOC_MMAP_THRESHOLD_") == nullptr) ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
#endif
}

}  // namespace troupe
