#include "launch/network/frame_check.hpp"

#include <algorithm>

namespace troupe {
namespace {

enum Operation : unsigned {
  server_handshake,
  client_handshake,
  direct_message,
  routed_message,
  monitor_message,
  down_message,
  heartbeat
};

}  // namespace

std::uint32_t FrameCheck::payload_length() const noexcept {
  std::uint32_t length = 0;
  for (std::size_t i = 4; i < 8; ++i) length = length << 8 | std::to_integer<std::uint32_t>(header_[i]);
  return length;
}

const char* FrameCheck::judge() const noexcept {
  const auto operation = std::to_integer<unsigned>(header_[0]);
  const auto length = payload_length();
  const bool handshake = operation == server_handshake || operation == client_handshake;
  if (operation > heartbeat) return "no such operation in a frame";
  if (frames_ == 0 && operation != (from_ == From::client ? client_handshake : server_handshake))
    return "the first frame is no handshake";
  if (frames_ > 0 && operation == server_handshake) return "a server's handshake";  // CAF's clients say theirs twice
  if (handshake && length > kLongestHandshake) return "a handshake that is too long";
  if (length > kLongestPayload) return "a frame that is too long";
  if (operation == heartbeat ? length != 0 : length == 0) return "a frame with the wrong length";
  return nullptr;
}

const char* FrameCheck::take(std::span<const std::byte> bytes) noexcept {
  while (!bytes.empty()) {
    if (payload_left_ > 0) {
      const auto n = std::min<std::size_t>(payload_left_, bytes.size());
      payload_left_ -= static_cast<std::uint32_t>(n);
      bytes = bytes.subspan(n);
      continue;
    }
    const auto n = std::min(header_.size() - filled_, bytes.size());
    std::copy_n(bytes.begin(), n, header_.begin() + static_cast<std::ptrdiff_t>(filled_));
    filled_ += n;
    bytes = bytes.subspan(n);
    if (filled_ < header_.size()) break;
    if (const char* wrong = judge()) return wrong;
    payload_left_ = payload_length();
    filled_ = 0;
    ++frames_;
  }
  return nullptr;
}

}  // namespace troupe
