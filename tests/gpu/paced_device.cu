#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/gpu/paced_device.hpp"

namespace troupe::test {
namespace {

constexpr std::size_t kStarts = 4096;  // collectives that may be under way at once

__device__ inline std::uint64_t now_ns() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void note_start(std::uint64_t* start) { *start = now_ns(); }

// Every block sleeps, as each of a collective's would wait for its neighbour.
__global__ void sleep_until(const std::uint64_t* start, std::uint64_t ns) {
  const std::uint64_t end = *start + ns;
  while (now_ns() < end) __nanosleep(500);
}

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string("paced copy: ") + what + ": " + cudaGetErrorString(error));
}

class Device final : public PacedDevice {
 public:
  Device() {
    check(cudaMalloc(reinterpret_cast<void**>(&starts_), kStarts * sizeof(std::uint64_t)), "memory");
    check(cudaEventCreate(&mark_), "event");
  }
  ~Device() override {
    cudaDeviceSynchronize();
    for (auto& entry : scratch_) {
      for (auto& memory : entry.second) cudaFree(memory.data);
    }
    for (auto& span : spans_) {
      cudaEventDestroy(span.begin);
      cudaEventDestroy(span.end);
    }
    cudaEventDestroy(mark_);
    cudaFree(starts_);
  }

  int copy(const void* input, void* output, std::size_t bytes, std::size_t wire_bytes, bool reduces_all,
           NcclStream on) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto* stream = static_cast<cudaStream_t>(on);
    if (pace_.bytes_per_s <= 0) {
      return input == output ? 0 : cudaMemcpyAsync(output, input, bytes, cudaMemcpyDeviceToDevice, stream);
    }
    void* between = nullptr;
    if (input == output) {
      if (const int error = scratch_of(stream, bytes, &between)) return error;
    }
    auto& span = next_span();
    span.reduces_all = reduces_all;
    span.wire_bytes = wire_bytes;
    auto* start = starts_ + next_start_++ % kStarts;
    const double seconds = static_cast<double>(wire_bytes) / pace_.bytes_per_s + pace_.latency_s;
    cudaEventRecord(span.begin, stream);
    note_start<<<1, 1, 0, stream>>>(start);
    if (between != nullptr) {
      cudaMemcpyAsync(between, input, bytes, cudaMemcpyDeviceToDevice, stream);
      cudaMemcpyAsync(output, between, bytes, cudaMemcpyDeviceToDevice, stream);
    } else {
      cudaMemcpyAsync(output, input, bytes, cudaMemcpyDeviceToDevice, stream);
    }
    sleep_until<<<pace_.blocks, 32, 0, stream>>>(start, static_cast<std::uint64_t>(1e9 * seconds));
    cudaEventRecord(span.end, stream);
    return cudaGetLastError();
  }
  int allocate(void** data, std::size_t bytes) override { return cudaMalloc(data, bytes); }
  int free(void* data) override { return cudaFree(data); }

  void set_pace(const Pace& pace) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    pace_ = pace;
  }
  void begin() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    used_ = 0;
    marked_ = false;
  }
  void mark(NcclStream stream) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    check(cudaEventRecord(mark_, static_cast<cudaStream_t>(stream)), "mark");
    marked_ = true;
  }

  Spans spans() override {
    check(cudaDeviceSynchronize(), "the end of the device's work");
    const std::lock_guard<std::mutex> lock(mutex_);
    Spans result;
    for (std::size_t i = 0; i < used_; ++i) {
      const auto& span = spans_[i];
      const double ms = between(span.begin, span.end);
      result.all_ms += ms;
      result.wire_bytes += span.wire_bytes;
      ++result.count;
      if (!span.reduces_all) continue;
      result.last_all_reduce_ms = ms;
      if (marked_) {
        const double after = between(mark_, span.end);  // negative where it was over before
        if (after > result.all_reduces_after_mark) result.all_reduces_after_mark = after;
      }
    }
    return result;
  }

 private:
  struct Span {
    cudaEvent_t begin, end;
    bool reduces_all = false;
    std::size_t wire_bytes = 0;
  };
  struct Memory {
    void* data;
    std::size_t bytes;
  };

  static double between(cudaEvent_t from, cudaEvent_t to) {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, from, to), "time between two events");
    return ms;
  }
  Span& next_span() {
    if (used_ == spans_.size()) {
      Span span{};
      check(cudaEventCreate(&span.begin), "event");
      check(cudaEventCreate(&span.end), "event");
      spans_.push_back(span);
    }
    return spans_[used_++];
  }
  // A stream's own: two may copy at once. A smaller one stays until the end, since copies that use it may be under way.
  int scratch_of(cudaStream_t stream, std::size_t bytes, void** data) {
    auto& own = scratch_[stream];
    if (own.empty() || own.back().bytes < bytes) {
      void* made = nullptr;
      if (const int error = cudaMalloc(&made, bytes)) return error;
      own.push_back({made, bytes});
    }
    *data = own.back().data;
    return 0;
  }

  std::mutex mutex_;
  Pace pace_;
  std::uint64_t* starts_ = nullptr;
  std::size_t next_start_ = 0, used_ = 0;
  std::vector<Span> spans_;
  std::map<cudaStream_t, std::vector<Memory>> scratch_;
  cudaEvent_t mark_ = nullptr;
  bool marked_ = false;
};

}  // namespace

std::shared_ptr<PacedDevice> PacedDevice::create() { return std::make_shared<Device>(); }

}  // namespace troupe::test
