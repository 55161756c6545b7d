#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace troupe {

/// What xxh3() gives, on processors that have the instructions. For it alone.
std::uint64_t xxh3_avx2(std::span<const std::byte> bytes) noexcept;
std::uint64_t xxh3_avx512(std::span<const std::byte> bytes) noexcept;

}  // namespace troupe
