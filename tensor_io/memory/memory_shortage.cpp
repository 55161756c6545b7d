#include "tensor_io/memory/memory_shortage.hpp"

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "tensor_io/device/accelerator.hpp"

namespace troupe {
namespace {

constexpr std::size_t kShown = 5;  // of the largest allocations, equal ones as one

struct Kept {
  std::mutex mutex;
  std::map<std::string, std::pair<std::int64_t, MemoryShortage>> by_device;  // with its number
  std::int64_t count = 0;
};

Kept& kept() {
  static Kept all;
  return all;
}

std::string place(c10::Device device) { return device.is_cpu() ? "the host" : device.str(); }

// The largest first; equal ones of one stream together.
std::string largest(const std::vector<LiveBlock>& blocks) {
  std::map<std::pair<std::int64_t, int>, std::int64_t> counts;  // by less bytes, stream
  for (const auto& block : blocks) {
    if (block.bytes > 0) ++counts[{-block.bytes, block.stream}];
  }
  std::string text;
  std::size_t shown = 0;
  std::int64_t rest = 0, rest_bytes = 0;
  for (const auto& [key, count] : counts) {
    if (shown++ >= kShown) {
      rest += count;
      rest_bytes -= key.first * count;
      continue;
    }
    text += (text.empty() ? "" : ", ") + (count > 1 ? std::to_string(count) + " x " : std::string()) +
            bytes_text(-key.first);
    if (key.second > 0) text += " (stream " + std::to_string(key.second) + ")";
  }
  if (rest > 0) text += ", and " + std::to_string(rest) + " smaller ones of " + bytes_text(rest_bytes);
  return text;
}

// None of the CPU, and of devices whose allocator is no caching one.
c10::DeviceAllocator* device_allocator(c10::Device device) {
  return device.is_cpu() ? nullptr : dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
}

}  // namespace

std::string bytes_text(std::int64_t bytes) {
  char text[32];
  const auto in = [&](int bits, const char* unit) {
    const double value = static_cast<double>(bytes) / static_cast<double>(std::int64_t{1} << bits);
    std::snprintf(text, sizeof text, value < 100 ? "%.2f %s" : "%.0f %s", value, unit);
    return std::string(text);
  };
  if (bytes >= std::int64_t{1} << 30) return in(30, "GiB");
  if (bytes >= std::int64_t{1} << 20) return in(20, "MiB");
  if (bytes >= std::int64_t{1} << 10) return in(10, "KiB");
  return std::to_string(bytes) + " bytes";
}

std::string describe(const MemoryShortage& shortage) {
  std::string text = shortage.requested >= 0 ? bytes_text(shortage.requested) + " asked for on " : "no more on ";
  text += place(shortage.device);
  if (shortage.free >= 0 && shortage.total >= 0)
    text += ", which has " + bytes_text(shortage.free) + " free of " + bytes_text(shortage.total);
  if (shortage.limit >= 0)
    text += "; this process may have " + bytes_text(shortage.limit) + " of addresses (ulimit -v)";
  if (shortage.allocated >= 0) {
    text += std::string("; this process's ") + (shortage.device.is_cpu() ? "large tensors take " : "tensors take ") +
            bytes_text(shortage.allocated);
    if (shortage.reserved >= 0)
      text += (shortage.device.is_cpu() ? ", all of it " : " of the ") + bytes_text(shortage.reserved);
    if (shortage.reserved >= 0 && !shortage.device.is_cpu()) text += " that it holds";
  }
  if (const auto list = largest(shortage.blocks); !list.empty()) text += "; the largest: " + list;
  return text;
}

std::string describe(std::vector<HeldMemory> held) {
  std::erase_if(held, [](const HeldMemory& part) { return part.bytes <= 0; });
  std::stable_sort(held.begin(), held.end(),
                   [](const HeldMemory& a, const HeldMemory& b) { return a.bytes > b.bytes; });
  std::string text;
  for (const auto& part : held)
    text += (text.empty() ? "Troupe holds: " : ", ") + part.what + " " + bytes_text(part.bytes);
  return text;
}

std::int64_t bytes_on(c10::Device device, std::span<const at::Tensor> tensors) {
  std::set<const void*> seen;
  std::int64_t bytes = 0;
  for (const auto& tensor : tensors) {
    if (!tensor.defined() || tensor.device() != device || !seen.insert(tensor.storage().unsafeGetStorageImpl()).second)
      continue;
    bytes += static_cast<std::int64_t>(tensor.storage().nbytes());
  }
  return bytes;
}

void note_shortage(MemoryShortage shortage) noexcept {
  try {
    auto& all = kept();
    const std::lock_guard lock(all.mutex);
    const auto name = shortage.device.str();
    all.by_device[name] = {++all.count, std::move(shortage)};
  } catch (const std::exception&) {  // no memory to say that there is none
  }
}

std::optional<MemoryShortage> last_shortage(c10::Device device) {
  auto& all = kept();
  const std::lock_guard lock(all.mutex);
  const std::pair<std::int64_t, MemoryShortage>* last = nullptr;
  for (const auto& name : {device.str(), c10::Device(c10::kCPU).str()}) {
    const auto found = all.by_device.find(name);
    if (found != all.by_device.end() && (last == nullptr || found->second.first > last->first)) last = &found->second;
  }
  return last == nullptr ? std::nullopt : std::optional(last->second);
}

void watch_memory(c10::Device device) {
  if (device.is_cuda() && accelerator() != nullptr) accelerator()->watch_memory();
}

std::string memory_remedy(c10::Device device) {
  const std::string less =
      "lower batch_size, raise grad_accum_steps, set activation_checkpointing, or shard the model (--strategy fsdp";
  if (device.is_cpu()) return "give the rank more memory (ulimit -v, the container's limit), or " + less + ")";
  return less + ", and with it --fsdp_cpu_offload true)";
}

void release_cached_memory(c10::Device device) {
  if (auto* allocator = device_allocator(device)) allocator->emptyCache();
}

DeviceMemoryPeak device_memory_peak(c10::Device device) {
  auto* allocator = device_allocator(device);
  if (allocator == nullptr || !allocator->initialized()) return {};
  const auto stats = allocator->getDeviceStats(device.index());
  const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return {stats.active_bytes[all].peak, stats.reserved_bytes[all].peak};
}

ErrorReport out_of_memory(const c10::OutOfMemoryError& error, c10::Device device) {
  const auto shortage = last_shortage(device);
  auto where = device;
  std::string cause = error.what_without_backtrace();  // of an allocator that does not tell
  if (shortage) {
    where = shortage->device;
    cause = describe(*shortage);
  }
  return {ErrorCode::user, -1, {}, -1, kOutOfMemory, cause, memory_remedy(where)};
}

}  // namespace troupe
