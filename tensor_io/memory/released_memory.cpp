#include "tensor_io/memory/released_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>

namespace troupe {
namespace {

// A signal handler may take no lock, so the table has a fixed length. Addresses that found no place in it are told of
// as any others.
struct Entry {
  std::atomic<bool> taken{false};
  std::atomic<std::uintptr_t> begin{0}, end{0};  // begin is written last, and first cleared
  std::array<char, 241> what{};
};
std::array<Entry, 1024> table;

}  // namespace

AbsentMemory::AbsentMemory(std::size_t bytes, const std::string& what) : bytes_(std::max<std::size_t>(bytes, 1)) {
  auto* const mapped = ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return;
  data_ = mapped;
  for (auto& entry : table) {
    if (entry.taken.exchange(true)) continue;
    entry.what.fill(0);
    what.copy(entry.what.data(), entry.what.size() - 1);
    const auto begin = reinterpret_cast<std::uintptr_t>(mapped);
    entry.end = begin + bytes_;
    entry.begin = begin;
    return;
  }
}

AbsentMemory::~AbsentMemory() {
  if (data_ == nullptr) return;
  for (auto& entry : table) {
    if (entry.begin != reinterpret_cast<std::uintptr_t>(data_)) continue;
    entry.begin = 0;
    entry.end = 0;
    entry.taken = false;
  }
  ::munmap(data_, bytes_);
}

const char* absent_memory_at(const void* address) noexcept {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  for (const auto& entry : table) {
    const auto begin = entry.begin.load();
    if (begin != 0 && wanted >= begin && wanted < entry.end) return entry.what.data();
  }
  return nullptr;
}

}  // namespace troupe
