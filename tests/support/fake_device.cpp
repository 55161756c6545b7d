#include "tests/support/fake_device.hpp"

#include <ATen/ops/from_blob.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "tensor_io/device/device_graph.hpp"
#include "tensor_io/memory/memory_shortage.hpp"

namespace troupe::test {
namespace {

/// What a stream comes after: of each stream, how many of its accesses.
using Clock = std::map<c10::StreamId, std::int64_t>;

struct FakeEvent {
  int number = 0;
  Clock clock;
  double ms = 0;              // the stream's
  std::atomic<int> round{0};  // of hold(); 0: over at once
};

std::mutex mutex;
std::vector<std::string> log;
int events = 0, pool = 0;
std::atomic<int> hold_round{0}, released_round{0};
std::atomic<int> items_read{0};
std::atomic<std::int64_t> bytes_held{0}, most_bytes_held{0};
std::atomic<std::int64_t> bytes_cached{0}, bytes_beside{0}, most_bytes_beside{0}, bytes_there{0};  // there 0: no limit
std::atomic<bool> holding{false}, failed{false};
thread_local c10::StreamId current_stream = 0;
thread_local bool chosen = false, failed_here = false;
const c10::Device kNoDevice(c10::DeviceType::PrivateUse1, 7);  // what is current on a thread that has chosen none

struct Access {
  std::uintptr_t begin, end;
  c10::StreamId stream;
  bool writes;
  std::int64_t time;  // in its stream
};

// Guarded by the mutex.
std::map<c10::StreamId, double> stream_ms, copying;
double copy_ms = 0;
std::int64_t copies_from = 0;
std::int64_t fails_at = 0, fails_from = 0;  // bytes, 0: none; stream
bool watching = false;
std::map<c10::StreamId, Clock> clocks;
std::vector<Access> accesses;
std::vector<std::string> found;

void note(std::string call) {
  std::lock_guard lock(mutex);
  log.push_back(std::move(call));
}

// Events of a stream that is written down are the graph's, to be seen by nobody else.
void refuse_in_graph(const c10::Stream& stream) {
  TORCH_CHECK(stream.id() != current_stream || graph_under_way(FakeDevice::device()) == nullptr,
              "an event: operation not permitted when stream is capturing");
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = chosen ? FakeDevice::device() : kNoDevice;
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return FakeDevice::device(); }
  void setDevice(c10::Device device) const override { chosen = device != kNoDevice; }
  void uncheckedSetDevice(c10::Device device) const noexcept override { chosen = device != kNoDevice; }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, current_stream);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    std::lock_guard lock(mutex);
    return c10::Stream(c10::Stream::UNSAFE, device, ++pool + (high_priority ? 100 : 0));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto before = getStream(stream.device());
    current_stream = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return reinterpret_cast<void*>(stream.id()); }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<FakeEvent*>(event);
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    refuse_in_graph(stream);
    if (*event == nullptr) {
      std::lock_guard lock(mutex);
      *event = new FakeEvent{++events, {}, 0, {}};
    }
    auto* fake = static_cast<FakeEvent*>(*event);
    fake->round = holding ? hold_round.load() : 0;
    {
      std::lock_guard lock(mutex);
      fake->clock = clocks[stream.id()];
      fake->ms = stream_ms[stream.id()];
    }
    note("e" + std::to_string(fake->number) + " marks s" + std::to_string(stream.id()));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    refuse_in_graph(stream);
    {
      std::lock_guard lock(mutex);
      auto& clock = clocks[stream.id()];
      for (const auto& [other, time] : static_cast<FakeEvent*>(event)->clock)
        clock[other] = std::max(clock[other], time);
      stream_ms[stream.id()] = std::max(stream_ms[stream.id()], static_cast<FakeEvent*>(event)->ms);
    }
    note("s" + std::to_string(stream.id()) + " waits for e" + std::to_string(static_cast<FakeEvent*>(event)->number));
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream& stream) const override {
    note("s" + std::to_string(stream.id()) + " uses memory");
  }
  bool queryEvent(void* event) const override {
    // LibTorch's CUDA asks in whatever device is current: a thread that chose none would make a context on device 0.
    TORCH_CHECK(chosen, "an event is looked at by a thread that has not chosen its device");
    if (failed || failed_here)
      throw c10::Error({"fake", "fake_device.cpp", 1}, "an illegal memory access was encountered");
    return event == nullptr || static_cast<FakeEvent*>(event)->round <= released_round;
  }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    std::lock_guard lock(mutex);
    return static_cast<FakeEvent*>(to)->ms - static_cast<FakeEvent*>(from)->ms;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};

const c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::PrivateUse1, new Guard());

}  // namespace

void FakeDevice::reset() {
  std::lock_guard lock(mutex);
  log.clear();
  events = pool = 0;
  watching = false;
  stream_ms.clear();
  copying.clear();
  copy_ms = 0;
  fails_at = 0;
  bytes_there = bytes_cached = 0;
  most_bytes_held = bytes_held.load();
  most_bytes_beside = bytes_beside.load();
  holding = failed = false;
  released_round = hold_round.load();
}

void FakeDevice::hold() {
  ++hold_round;
  holding = true;
}

void FakeDevice::release() {
  holding = false;
  released_round = hold_round.load();
}

void FakeDevice::forget() {
  std::lock_guard lock(mutex);
  log.clear();
}

void FakeDevice::fail_allocation(std::int64_t bytes, std::int64_t from) {
  std::lock_guard lock(mutex);
  fails_at = bytes;
  fails_from = from;
}

void FakeDevice::note_allocation(std::int64_t bytes) {
  {
    std::lock_guard lock(mutex);
    if (fails_at == 0 || bytes < fails_at || current_stream < fails_from) return;
    fails_at = 0;
  }
  MemoryShortage shortage;
  shortage.device = device();
  shortage.requested = bytes;
  shortage.free = 1 << 20;
  shortage.total = 1 << 30;
  shortage.allocated = FakeDevice::bytes();
  shortage.reserved = FakeDevice::bytes() + 512;
  shortage.blocks = {{300 << 10, 0}, {100 << 10, 2}, {300 << 10, 0}};
  note_shortage(shortage);
  TORCH_CHECK_WITH(OutOfMemoryError, false, "fake: out of memory. Tried to allocate ", bytes, " bytes");
}

void FakeDevice::work(double ms) {
  std::lock_guard lock(mutex);
  stream_ms[current_stream] += ms;
}

void FakeDevice::copies_take(double ms, std::int64_t from) {
  std::lock_guard lock(mutex);
  copy_ms = ms;
  copies_from = from;
}

double FakeDevice::copying_ms(std::int64_t from) {
  std::lock_guard lock(mutex);
  double sum = 0;
  for (const auto& [stream, ms] : copying) sum += stream >= from ? ms : 0;
  return sum;
}

void FakeDevice::note_copy() {
  std::lock_guard lock(mutex);
  if (copy_ms == 0 || current_stream < copies_from) return;
  stream_ms[current_stream] += copy_ms;
  copying[current_stream] += copy_ms;
}

bool FakeDevice::is_chosen_here() { return chosen; }

int FakeDevice::items() { return items_read; }
void FakeDevice::note_item() { ++items_read; }

void FakeDevice::fail() { failed = true; }
void FakeDevice::fail_here() { failed_here = true; }

std::vector<std::string> FakeDevice::calls() {
  std::lock_guard lock(mutex);
  return log;
}

std::int64_t FakeDevice::bytes() { return bytes_held; }
std::int64_t FakeDevice::most_bytes() { return most_bytes_held; }
void FakeDevice::note_bytes(std::int64_t change) {
  bytes_held += change;
  most_bytes_held = std::max(most_bytes_held.load(), bytes_held.load());
  if (bytes_there != 0) bytes_cached = std::max<std::int64_t>(0, bytes_cached - change);
}

void FakeDevice::limit_memory(std::int64_t bytes) { bytes_there = bytes; }

bool FakeDevice::take_beside(std::int64_t bytes) {
  if (bytes > 0 && bytes_there != 0 && bytes_held + bytes_cached + bytes_beside + bytes > bytes_there) return false;
  bytes_beside += bytes;
  most_bytes_beside = std::max(most_bytes_beside.load(), bytes_beside.load());
  return true;
}

std::int64_t FakeDevice::most_beside() { return most_bytes_beside; }
void FakeDevice::empty_cache() { bytes_cached = 0; }

void FakeDevice::look_for_races() {
  std::lock_guard lock(mutex);
  watching = true;
  accesses.clear();
  found.clear();
}

std::vector<std::string> FakeDevice::races() {
  std::lock_guard lock(mutex);
  return found;
}

void FakeDevice::note_access(const void* data, std::size_t bytes, bool writes) {
  std::lock_guard lock(mutex);
  if (!watching || bytes == 0) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const auto own = current_stream;
  auto& clock = clocks[own];
  const Access access{begin, begin + bytes, own, writes, ++clock[own]};
  for (const auto& earlier : accesses) {
    const bool meets = earlier.begin < access.end && access.begin < earlier.end;
    if (!meets || earlier.stream == own || !(writes || earlier.writes) || clock[earlier.stream] >= earlier.time)
      continue;
    const auto race = "s" + std::to_string(own) + (writes ? " writes" : " reads") + " what s" +
                      std::to_string(earlier.stream) + (earlier.writes ? " writes" : " reads");
    if (std::find(found.begin(), found.end(), race) == found.end()) found.push_back(race);
  }
  std::erase_if(accesses, [&](const Access& earlier) {
    return earlier.stream == own && earlier.writes == writes && earlier.begin >= access.begin &&
           earlier.end <= access.end;
  });
  accesses.push_back(access);
}

void FakeDevice::forget_memory(const void* data, std::size_t bytes) {
  std::lock_guard lock(mutex);
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  std::erase_if(accesses, [&](const Access& access) { return access.begin < begin + bytes && begin < access.end; });
}

at::Tensor FakeDevice::tensor(std::int64_t numel, at::ScalarType dtype) {
  const auto memory = std::make_shared<std::vector<std::max_align_t>>(
      (static_cast<std::size_t>(numel) + 1) * c10::elementSize(dtype) / sizeof(std::max_align_t) + 1);
  return at::from_blob(
      memory->data(), {numel}, [memory](void*) {}, at::TensorOptions().dtype(dtype).device(device()), device());
}

}  // namespace troupe::test
