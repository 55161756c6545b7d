#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace troupe {

/// The most pixels that a picture may have: it bounds a picture's memory before any is allocated.
constexpr std::int64_t kMostPixels = std::int64_t{1} << 26;

/// A JPEG or PNG picture, by its first bytes: (height, width, channels) u8, channels 1 (grey) or 3 (RGB). As with
/// Pillow's `convert("RGB")`, palettes are looked up, an alpha channel is dropped, 16 bits become 8, and gamma and the
/// camera's orientation are ignored. A JPEG much larger than needed is decoded at 1/2, 1/4 or 1/8 of its size: the
/// smallest whose shorter side still has twice `least_side` pixels (0: never). So the rest of the resize averages. Any
/// thread. Throws Error(bad_data) with `where` (file, member), the reason and a remedy: another format, cut off,
/// broken, more than kMostPixels, more than a file of that length can hold.
at::Tensor decode_image(std::span<const std::byte> bytes, const std::string& where, std::int64_t channels,
                        std::int64_t least_side = 0);

}  // namespace troupe
