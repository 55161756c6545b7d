#pragma once
#include <cstdint>

#include "tensor_io/base/philox.hpp"  // TROUPE_HOST_DEVICE

// What the one .cu file offers the C++ side, in plain types: nvcc sees nothing of LibTorch.
namespace troupe::cuda {

enum class Number : std::uint8_t { f32, f16, bf16 };

constexpr int kPackItems = 64;  // of one launch: they are its argument, which may have 4 KiB

constexpr int kThreads = 256;   // of a block
constexpr int kPackNumel = 8192;  // elements that a block packs: each thread has 64 or 128 bytes under way at once

struct PackItems {
  const void* sources[kPackItems];
  std::int64_t offsets[kPackItems];  ///< in the bucket, elements
  std::int64_t numels[kPackItems];
  int first_blocks[kPackItems + 1];  ///< of each item, and how many blocks there are; plan_blocks fills them
  int count;
};

/// Blocks by the size of each item, so that one large item fills the device as many small ones do. Returns how many.
constexpr int plan_blocks(PackItems& items) {
  int blocks = 0;
  for (int i = 0; i < items.count; ++i) {
    items.first_blocks[i] = blocks;
    blocks += static_cast<int>((items.numels[i] + kPackNumel - 1) / kPackNumel);
  }
  items.first_blocks[items.count] = blocks;
  return blocks;
}

/// The item that a block works at.
TROUPE_HOST_DEVICE constexpr int item_of_block(const PackItems& items, int block) {
  int low = 0, high = items.count;  // first_blocks[low] <= block < first_blocks[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (items.first_blocks[middle] <= block ? low : high) = middle;
  }
  return low;
}

constexpr int kPartials = 1024;  // doubles that scale_and_check needs beside

/// `stream` is a cudaStream_t; 0 or a cudaError_t.
int pack(void* bucket, Number bucket_type, PackItems& items, Number source_type, float scale, void* stream);
/// `partials`: 2 * kPartials doubles on the device.
int scale_and_check(void* data, std::int64_t numel, Number type, float scale, double* partials, double* result,
                    void* stream);

/// Which of `numel` elements a dropout keeps, four by one count of Philox's (key, subsequence). `key_there`: the key,
/// on the device; nullptr: `key` is it.
int dropout_mask(bool* keep, std::int64_t numel, std::uint64_t dropped_below, std::uint64_t key,
                 const std::int64_t* key_there, std::uint64_t subsequence, void* stream);

}  // namespace troupe::cuda
