#pragma once
#include <cstddef>
#include <cstdint>

namespace troupe {

/// What xxh3() gives, on processors that have the instructions. For it alone. No type of the library: what a header
/// defines would be compiled for such processors only, and the linker might take it for the whole program.
std::uint64_t xxh3_avx2(const void* data, std::size_t bytes) noexcept;
std::uint64_t xxh3_avx512(const void* data, std::size_t bytes) noexcept;

/// The next bytes of a stream. `state`: an XXH3_state_t, which is the same for all processors.
void xxh3_update_avx2(void* state, const void* data, std::size_t bytes) noexcept;
void xxh3_update_avx512(void* state, const void* data, std::size_t bytes) noexcept;

}  // namespace troupe
