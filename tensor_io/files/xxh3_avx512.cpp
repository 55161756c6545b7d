// XXH3 with registers of 512 bits. A file of its own: the header picks its instructions when it is compiled.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tensor_io/files/xxh3_wide.hpp"

namespace troupe {

std::uint64_t xxh3_avx512(const void* data, std::size_t bytes) noexcept { return XXH3_64bits(data, bytes); }

void xxh3_update_avx512(void* state, const void* data, std::size_t bytes) noexcept {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state), data, bytes);
}

}  // namespace troupe
