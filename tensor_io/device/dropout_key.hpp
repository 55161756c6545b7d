#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

namespace troupe {

/// Of a mask: a number, or one in the device's memory.
struct DropoutKey {
  DropoutKey(std::uint64_t key = 0) : value(key) {}  // NOLINT: a plain key converts
  explicit DropoutKey(at::Tensor in_memory) : there(std::move(in_memory)) {}
  std::uint64_t value = 0;
  at::Tensor there;  ///< () i64 on the mask's device, the same bits; undefined: `value` counts
};

}  // namespace troupe
