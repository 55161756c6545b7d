// What a peer sends to the coordinator's port: CAF's frames, cut anywhere.
#include "launch/network/frame_check.hpp"

#include <algorithm>
#include <string>
#include <string_view>

#include "tests/fuzz/fuzz.hpp"

using namespace troupe;

namespace {

// The one message that may come: no stages, no number, and 8 bytes of names.
constexpr std::string_view kTold("\0\0\0\10@<>+Told", 12);

// By the book, all bytes at once: whether CAF may see them.
bool good(std::span<const std::byte> bytes, bool from_client) {
  std::string_view node;
  for (std::uint64_t frames = 0; bytes.size() >= 32; ++frames) {
    const auto operation = std::to_integer<unsigned>(bytes[0]);
    std::uint64_t length = 0;
    for (std::size_t i = 4; i < 8; ++i) length = length * 256 + std::to_integer<unsigned>(bytes[i]);
    const std::size_t longest = operation > 1 ? 16u << 20 : from_client ? 256 : 64u << 10;
    if (operation > 6 || (operation == 6) != (length == 0) || length > longest) return false;
    if (from_client && operation == 3) return false;
    if (frames == 0 ? operation != (from_client ? 1u : 0u) : operation == 0) return false;
    bytes = bytes.subspan(32);
    const std::string_view there(reinterpret_cast<const char*>(bytes.data()),
                                 std::min<std::size_t>(length, bytes.size()));
    if (from_client && there.size() >= std::min<std::size_t>(length, 512)) {
      const auto payload = there.substr(0, 512);
      if (operation == 1 && frames == 0) node = payload;
      if (operation == 1 && payload != node) return false;
      if ((operation == 4 || operation == 5) && payload.substr(0, node.size()) != node) return false;
      if (operation == 2 && payload.substr(0, kTold.size()) != kTold) return false;
    }
    if (length > bytes.size()) return true;
    bytes = bytes.subspan(length);
  }
  return true;
}

}  // namespace

TROUPE_FUZZ_TARGET(const std::uint8_t* data, std::size_t bytes) {
  if (bytes < 2) return 0;
  const bool from_client = data[0] % 2 == 0;
  const std::size_t step = data[1] + 1u;
  const auto input = std::as_bytes(std::span(data + 2, bytes - 2));
  FrameCheck check(from_client ? FrameCheck::From::client : FrameCheck::From::server, {"@<>+Told"});
  bool refused = false;
  for (std::size_t at = 0; at < input.size() && !refused; at += step)
    refused = check.take(input.subspan(at, std::min(step, input.size() - at))) != nullptr;
  if (refused == good(input, from_client)) std::abort();
  return 0;
}
