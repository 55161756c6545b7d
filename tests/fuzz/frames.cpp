// What a peer sends to the coordinator's port: CAF's frames, cut anywhere.
#include "launch/network/frame_check.hpp"

#include <string>

#include "tests/fuzz/fuzz.hpp"

using namespace troupe;

namespace {

// By the book, all bytes at once: whether CAF may see them.
bool good(std::span<const std::byte> bytes, bool from_client) {
  for (std::uint64_t frames = 0; bytes.size() >= 32; ++frames) {
    const auto operation = std::to_integer<unsigned>(bytes[0]);
    std::uint64_t length = 0;
    for (std::size_t i = 4; i < 8; ++i) length = length * 256 + std::to_integer<unsigned>(bytes[i]);
    if (operation > 6 || (operation == 6) != (length == 0) || length > (operation < 2 ? 64u << 10 : 16u << 20))
      return false;
    if (frames == 0 ? operation != (from_client ? 1u : 0u) : operation == 0) return false;
    if (length > bytes.size() - 32) return true;
    bytes = bytes.subspan(32 + length);
  }
  return true;
}

}  // namespace

TROUPE_FUZZ_TARGET(const std::uint8_t* data, std::size_t bytes) {
  if (bytes < 2) return 0;
  const bool from_client = data[0] % 2 == 0;
  const std::size_t step = data[1] + 1u;
  const auto input = std::as_bytes(std::span(data + 2, bytes - 2));
  FrameCheck check(from_client ? FrameCheck::From::client : FrameCheck::From::server);
  bool refused = false;
  for (std::size_t at = 0; at < input.size() && !refused; at += step)
    refused = check.take(input.subspan(at, std::min(step, input.size() - at))) != nullptr;
  if (refused == good(input, from_client)) std::abort();
  return 0;
}
