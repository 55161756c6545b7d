#pragma once
#include <cstdint>

#include "tensor_io/base/philox.hpp"  // TROUPE_HOST_DEVICE

// How a device's pack splits its work: plain types, for nvcc and for tests without it.
namespace troupe::cuda {

constexpr int kPackItems = 64;  // of one launch: they are its argument, which may have 4 KiB

constexpr int kThreads = 256;     // of a block
constexpr int kPackNumel = 8192;  // elements that a block packs: each thread has 64 or 128 bytes under way at once

struct PackItems {
  const void* sources[kPackItems];
  std::int64_t offsets[kPackItems];  ///< in the bucket, elements
  std::int64_t numels[kPackItems];
  int first_blocks[kPackItems + 1];  ///< of each item, and the number of blocks; plan_blocks fills them
  int count;
};

/// Blocks by the size of each item: one large item fills the device as many small ones do. Returns their number.
constexpr int plan_blocks(PackItems& items) {
  int blocks = 0;
  for (int i = 0; i < items.count; ++i) {
    items.first_blocks[i] = blocks;
    blocks += static_cast<int>((items.numels[i] + kPackNumel - 1) / kPackNumel);
  }
  items.first_blocks[items.count] = blocks;
  return blocks;
}

/// The item of a block.
TROUPE_HOST_DEVICE constexpr int item_of_block(const PackItems& items, int block) {
  int low = 0, high = items.count;  // first_blocks[low] <= block < first_blocks[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (items.first_blocks[middle] <= block ? low : high) = middle;
  }
  return low;
}

}  // namespace troupe::cuda
