#pragma once
#include <cstddef>
#include <cstdint>

namespace troupe {

/// The same as xxh3(), on processors that have the instructions. For xxh3() alone. No type of the library: a header's
/// definitions would be compiled for such processors only, and the linker might take them for the whole program.
std::uint64_t xxh3_avx2(const void* data, std::size_t bytes) noexcept;
std::uint64_t xxh3_avx512(const void* data, std::size_t bytes) noexcept;

/// The next bytes of a stream. `state`: an XXH3_state_t, which is the same for all processors.
void xxh3_update_avx2(void* state, const void* data, std::size_t bytes) noexcept;
void xxh3_update_avx512(void* state, const void* data, std::size_t bytes) noexcept;

}  // namespace troupe
