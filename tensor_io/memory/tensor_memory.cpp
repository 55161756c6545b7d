#include "tensor_io/memory/tensor_memory.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "tensor_io/memory/memory_shortage.hpp"

namespace troupe {
namespace {

constexpr std::size_t kLarge =
    1 << 20;  // bytes of a block that is remembered, so that whoever runs out of memory can be told of it
constexpr std::size_t kAlignment = 64;  // LibTorch's own: of a cache line and an AVX-512 register

struct LargeBlocks {
  std::mutex mutex;
  std::unordered_map<const void*, std::size_t> bytes;  // guarded by mutex; by the address that malloc gave
};

LargeBlocks& large_blocks() {
  static auto* const blocks = new LargeBlocks;  // as the allocator
  return *blocks;
}

bool is_large(void* given) { return ::malloc_usable_size(given) >= kLarge; }

void remember(void* given, std::size_t bytes) noexcept {
  if (!is_large(given)) return;
  auto& blocks = large_blocks();
  const std::lock_guard lock(blocks.mutex);
  try {
    blocks.bytes[given] = bytes;
  } catch (const std::exception&) {  // it is not told of then
  }
}

void forget(void* given) noexcept {
  if (!is_large(given)) return;
  auto& blocks = large_blocks();
  const std::lock_guard lock(blocks.mutex);
  blocks.bytes.erase(given);
}

// A number in kB of /proc/meminfo; -1 where it is not.
std::int64_t meminfo_bytes(const std::string& text, const std::string& name) {
  const auto at = text.find(name + ":");
  return at == std::string::npos ? -1 : std::strtoll(text.c_str() + at + name.size() + 1, nullptr, 10) * 1024;
}

std::string text_of(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void tell_shortage(std::size_t requested) {
  try {
    MemoryShortage shortage;
    shortage.requested = static_cast<std::int64_t>(std::min<std::size_t>(requested, INT64_MAX));
    const auto meminfo = text_of("/proc/meminfo");
    shortage.free = meminfo_bytes(meminfo, "MemAvailable");
    shortage.total = meminfo_bytes(meminfo, "MemTotal");
    const auto pages = text_of("/proc/self/statm");
    if (const auto resident = pages.find(' '); resident != std::string::npos)
      shortage.reserved = std::strtoll(pages.c_str() + resident, nullptr, 10) * ::sysconf(_SC_PAGESIZE);
    rlimit addresses{};
    if (::getrlimit(RLIMIT_AS, &addresses) == 0 && addresses.rlim_cur != RLIM_INFINITY)
      shortage.limit = static_cast<std::int64_t>(addresses.rlim_cur);
    shortage.allocated = 0;
    auto& blocks = large_blocks();
    const std::lock_guard lock(blocks.mutex);
    for (const auto& [data, bytes] : blocks.bytes) {
      shortage.blocks.push_back({static_cast<std::int64_t>(bytes), 0});
      shortage.allocated += static_cast<std::int64_t>(bytes);
    }
    note_shortage(std::move(shortage));
  } catch (const std::exception&) {  // so little is left that it can't be told
  }
}

// Before a block stands the address that malloc gave.
void release(void* data) {
  if (data == nullptr) return;
  c10::profiledCPUMemoryReporter().Delete(data);
  void* given = static_cast<void**>(data)[-1];
  forget(given);
  std::free(given);  // NOLINT(cppcoreguidelines-no-malloc): this is an allocator
}

class MallocAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* data = nullptr;
    if (bytes > 0) {
      constexpr auto kBefore = kAlignment + sizeof(void*);
      // NOLINTNEXTLINE(cppcoreguidelines-no-malloc)
      void* given = bytes <= SIZE_MAX - kBefore ? std::malloc(bytes + kBefore) : nullptr;
      if (given == nullptr) {
        c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
        tell_shortage(bytes);
      }
      TORCH_CHECK_WITH(OutOfMemoryError, given != nullptr, "can't allocate memory: you tried to allocate ", bytes,
                       " bytes");
      const auto first = reinterpret_cast<std::uintptr_t>(given) + sizeof(void*);
      data = reinterpret_cast<void*>((first + kAlignment - 1) / kAlignment * kAlignment);
      static_cast<void**>(data)[-1] = given;
      remember(given, bytes);
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
