#pragma once
#include <cstdint>

#include "tensor_io/device/pack_items.hpp"

// The interface of the one .cu file for the C++ side, in plain types: nvcc sees nothing of LibTorch.
namespace troupe::cuda {

enum class Number : std::uint8_t { f32, f16, bf16 };

constexpr int kPartials = 1024;  // doubles that scale_and_check needs beside

/// `stream` is a cudaStream_t; 0 or a cudaError_t.
int pack(void* bucket, Number bucket_type, PackItems& items, Number source_type, float scale, void* stream);
/// `partials`: 2 * kPartials doubles on the device.
int scale_and_check(void* data, std::int64_t numel, Number type, float scale, double* partials, double* result,
                    void* stream);

/// Adds the hash of `bytes` bytes to `result`, on the device.
int hash_bytes(const void* data, std::int64_t bytes, std::int64_t* result, void* stream);

/// The elements, of `numel`, that a dropout keeps, four by one count of Philox's (key, subsequence). `key_there`: the
/// key, on the device; nullptr: it is `key`.
int dropout_mask(bool* keep, std::int64_t numel, std::uint64_t dropped_below, std::uint64_t key,
                 const std::int64_t* key_there, std::uint64_t subsequence, void* stream);

}  // namespace troupe::cuda
