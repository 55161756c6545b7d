#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "tensor_io/base/philox.hpp"
#include "tensor_io/cuda/device_kernels_cuda.hpp"
#include "tensor_io/device/hash_words.hpp"

// The kernels move each byte once and are bound by memory: so 16 bytes a load, several of them under way in each
// thread, and enough blocks to fill the device.
namespace troupe::cuda {
namespace {

constexpr std::int64_t kMaskBlocks = 2048, kHashBlocks = 2048;
constexpr int kHashWords = 8;  // of a thread, if there are enough
constexpr int kAtOnce = 4;     // loads that are under way in a thread of check_kernel

template <class T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Vector {
  T of[kCount];
};

template <class T>
__device__ inline bool is_aligned(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % alignof(T) == 0;
}

__device__ inline float as_float(float x) { return x; }
__device__ inline float as_float(__half x) { return __half2float(x); }
__device__ inline float as_float(__nv_bfloat16 x) { return __bfloat162float(x); }
template <class T>
__device__ inline T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

template <class To, class From>
__global__ void __launch_bounds__(kThreads)
    pack_kernel(To* __restrict__ bucket, const __grid_constant__ PackItems items, float scale) {
  constexpr int kCount = 16 / sizeof(From), kRounds = kPackNumel / (kCount * kThreads);
  using Loaded = Vector<From, kCount>;
  using Stored = Vector<To, kCount>;
  const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int item = item_of_block(items, block);
  const std::int64_t begin = static_cast<std::int64_t>(block - items.first_blocks[item]) * kPackNumel;
  const From* __restrict__ from = static_cast<const From*>(items.sources[item]) + begin;
  To* __restrict__ to = bucket + items.offsets[item] + begin;
  const int numel = static_cast<int>(min(items.numels[item] - begin, static_cast<std::int64_t>(kPackNumel)));
  const int vectors = is_aligned<Loaded>(from) && is_aligned<Stored>(to) ? numel / kCount : 0;
  Loaded loaded[kRounds];
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int i = round * kThreads + thread;
    if (i < vectors) loaded[round] = reinterpret_cast<const Loaded*>(from)[i];
  }
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int i = round * kThreads + thread;
    if (i >= vectors) continue;
    Stored stored;
#pragma unroll
    for (int k = 0; k < kCount; ++k) stored.of[k] = from_float<To>(__fmul_rn(as_float(loaded[round].of[k]), scale));
    reinterpret_cast<Stored*>(to)[i] = stored;
  }
#pragma unroll 4
  for (int i = vectors * kCount + thread; i < numel; i += kThreads)
    to[i] = from_float<To>(__fmul_rn(as_float(from[i]), scale));
}

// The sum over the block's threads, in a fixed order, at thread 0.
__device__ inline double block_sum(double value, double* shared) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    __syncthreads();
  }
  const double sum = shared[0];
  __syncthreads();
  return sum;
}

// Which elements a thread adds, and in which order, follows from the number of blocks, which is fixed, and from whether
// the data is aligned to 16 bytes.
template <class T>
__global__ void __launch_bounds__(kThreads)
    check_kernel(T* data, std::int64_t numel, float scale, double* __restrict__ partials) {
  __shared__ double shared[kThreads];
  using Loaded = Vector<T, 16 / sizeof(T)>;
  constexpr int kCount = 16 / sizeof(T);
  double squares = 0, not_finite = 0;
  const auto look = [&](T& element) {
    if (scale != 1.0f) element = from_float<T>(__fmul_rn(as_float(element), scale));
    const double value = as_float(element);
    squares = __dadd_rn(squares, __dmul_rn(value, value));
    if (!isfinite(value)) not_finite += 1;
  };
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t vectors = is_aligned<Loaded>(data) ? numel / kCount : 0;
  auto* wide = reinterpret_cast<Loaded*>(data);
  for (std::int64_t at = first; at < vectors; at += kAtOnce * stride) {
    Loaded loaded[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (at + k * stride < vectors) loaded[k] = wide[at + k * stride];
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (at + k * stride >= vectors) continue;
#pragma unroll
      for (int e = 0; e < kCount; ++e) look(loaded[k].of[e]);
      if (scale != 1.0f) wide[at + k * stride] = loaded[k];
    }
  }
  for (std::int64_t i = vectors * kCount + first; i < numel; i += stride) {
    T element = data[i];
    look(element);
    if (scale != 1.0f) data[i] = element;
  }
  squares = block_sum(squares, shared);
  not_finite = block_sum(not_finite, shared);
  if (threadIdx.x == 0) {
    partials[2 * blockIdx.x] = squares;
    partials[2 * blockIdx.x + 1] = not_finite;
  }
}

__global__ void add_partials_kernel(const double* partials, int count, double* result) {
  __shared__ double shared[kThreads];
  double squares = 0, not_finite = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    squares += partials[2 * i];
    not_finite += partials[2 * i + 1];
  }
  squares = block_sum(squares, shared);
  not_finite = block_sum(not_finite, shared);
  if (threadIdx.x == 0) {
    result[0] = squares;
    result[1] = not_finite;
  }
}

__global__ void dropout_kernel(bool* keep, std::int64_t numel, std::uint64_t dropped_below, std::uint64_t key_given,
                               const std::int64_t* key_there, std::uint64_t subsequence) {
  const std::uint64_t key = key_there == nullptr ? key_given : static_cast<std::uint64_t>(*key_there);
  const std::int64_t counts = (numel + 3) / 4;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t count = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; count < counts;
       count += stride) {
    const PhiloxNumbers numbers = philox(key, subsequence, static_cast<std::uint64_t>(count));
    for (int k = 0; k < 4 && 4 * count + k < numel; ++k) keep[4 * count + k] = numbers.of[k] >= dropped_below;
  }
}

// A sum of integers: the same in any order.
__global__ void __launch_bounds__(kThreads)
    hash_kernel(const unsigned char* __restrict__ data, std::int64_t bytes, unsigned long long* result) {
  __shared__ unsigned long long shared;
  if (threadIdx.x == 0) shared = 0;
  __syncthreads();
  const bool aligned = is_aligned<std::uint32_t>(data);
  const auto* words = reinterpret_cast<const std::uint32_t*>(data);
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  unsigned long long sum = 0;
#pragma unroll 4
  for (std::int64_t word = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; 4 * word < bytes;
       word += stride) {
    const bool whole = aligned && 4 * word + 4 <= bytes;
    sum += hash_of_word(whole ? words[word] : word_at(data, bytes, word), word);
  }
  atomicAdd(&shared, sum);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(result, shared);
}

template <class To>
void launch_pack(void* bucket, PackItems& items, Number source_type, float scale, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(plan_blocks(items));
  if (blocks == 0) return;
  auto* to = static_cast<To*>(bucket);
  switch (source_type) {
    case Number::f32: pack_kernel<To, float><<<blocks, kThreads, 0, stream>>>(to, items, scale); break;
    case Number::f16: pack_kernel<To, __half><<<blocks, kThreads, 0, stream>>>(to, items, scale); break;
    case Number::bf16: pack_kernel<To, __nv_bfloat16><<<blocks, kThreads, 0, stream>>>(to, items, scale); break;
  }
}

}  // namespace

int pack(void* bucket, Number bucket_type, PackItems& items, Number source_type, float scale, void* stream) {
  if (items.count == 0) return 0;
  auto* on = static_cast<cudaStream_t>(stream);
  switch (bucket_type) {
    case Number::f32: launch_pack<float>(bucket, items, source_type, scale, on); break;
    case Number::f16: launch_pack<__half>(bucket, items, source_type, scale, on); break;
    case Number::bf16: launch_pack<__nv_bfloat16>(bucket, items, source_type, scale, on); break;
  }
  return static_cast<int>(cudaGetLastError());
}

int scale_and_check(void* data, std::int64_t numel, Number type, float scale, double* partials, double* result,
                    void* stream) {
  auto* on = static_cast<cudaStream_t>(stream);
  switch (type) {
    case Number::f32:
      check_kernel<<<kPartials, kThreads, 0, on>>>(static_cast<float*>(data), numel, scale, partials);
      break;
    case Number::f16:
      check_kernel<<<kPartials, kThreads, 0, on>>>(static_cast<__half*>(data), numel, scale, partials);
      break;
    case Number::bf16:
      check_kernel<<<kPartials, kThreads, 0, on>>>(static_cast<__nv_bfloat16*>(data), numel, scale, partials);
      break;
  }
  add_partials_kernel<<<1, kThreads, 0, on>>>(partials, kPartials, result);
  return static_cast<int>(cudaGetLastError());
}

int hash_bytes(const void* data, std::int64_t bytes, std::int64_t* result, void* stream) {
  if (bytes == 0) return 0;
  const std::int64_t of_block = 4 * kHashWords * kThreads;
  const auto blocks = std::min((bytes + of_block - 1) / of_block, kHashBlocks);
  hash_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const unsigned char*>(data), bytes, reinterpret_cast<unsigned long long*>(result));
  return static_cast<int>(cudaGetLastError());
}

int dropout_mask(bool* keep, std::int64_t numel, std::uint64_t dropped_below, std::uint64_t key,
                 const std::int64_t* key_there, std::uint64_t subsequence, void* stream) {
  if (numel == 0) return 0;
  const auto blocks = std::min<std::int64_t>((numel + 4 * kThreads - 1) / (4 * kThreads), kMaskBlocks);
  dropout_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      keep, numel, dropped_below, key, key_there, subsequence);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace troupe::cuda
