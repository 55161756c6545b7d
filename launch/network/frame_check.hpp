#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace troupe {

/// Follows the frames of CAF 0.17's wire protocol (BASP 3: a header of 32 bytes, big-endian, then a payload) in the
/// bytes that a peer sends, and refuses what CAF itself does not survive or has no bound for: a handshake or a message
/// without a payload is a null pointer there, and it allocates whatever length a header says. What is in a payload is
/// not looked at. Pure; one thread.
class FrameCheck {
 public:
  enum class From : std::uint8_t { client, server };
  static constexpr std::uint32_t kLongestPayload = 16u << 20;
  static constexpr std::uint32_t kLongestHandshake = 64u << 10;

  explicit FrameCheck(From from) noexcept : from_(from) {}

  /// The next bytes, cut anywhere. Null: nothing is wrong so far; else what is, and the connection must end before CAF
  /// sees these bytes.
  const char* take(std::span<const std::byte> bytes) noexcept;

  /// The peer's handshake has been taken whole.
  bool greeted() const noexcept { return frames_ > 1 || (frames_ == 1 && payload_left_ == 0); }

 private:
  const char* judge() const noexcept;
  std::uint32_t payload_length() const noexcept;

  From from_;
  std::array<std::byte, 32> header_{};
  std::size_t filled_ = 0;
  std::uint32_t payload_left_ = 0;
  std::uint64_t frames_ = 0;  // whose header was taken
};

}  // namespace troupe
