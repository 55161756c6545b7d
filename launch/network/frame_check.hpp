#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troupe {

/// Follows the frames of CAF 0.17's wire protocol (BASP 3: a header of 32 bytes, big-endian, then a payload) in a
/// peer's bytes. Refuses frames that CAF itself does not survive or bound: a handshake or message without a payload is
/// a null pointer there, and it allocates any length in a header. Also refuses frames of a client that CAF would accept
/// and none of ours sends: in the name of another node, or for one, or a message of a type that the coordinator does
/// not take (CAF obeys an `exit_msg` from anywhere). Pure; one thread.
class FrameCheck {
 public:
  enum class From : std::uint8_t { client, server };
  static constexpr std::uint32_t kLongestPayload = 16u << 20;
  static constexpr std::uint32_t kLongestHandshake = 64u << 10, kLongestNode = 256;

  /// `messages`: those that a client may send, by the names of their parts as CAF writes them, "@<>+JoinJob"; fewer
  /// than 128 bytes each.
  explicit FrameCheck(From from, const std::vector<std::string>& messages = {});

  /// The next bytes, cut anywhere. Null: nothing is wrong so far; else the error, and the connection must end before
  /// CAF sees these bytes.
  const char* take(std::span<const std::byte> bytes);

  /// The peer's handshake has been taken whole.
  bool greeted() const noexcept { return frames_ > 1 || (frames_ == 1 && payload_left_ == 0); }
  /// The name of the client's node in the frames; empty: not greeted yet.
  const std::string& node() const noexcept { return node_; }

 private:
  const char* judge() const noexcept;
  const char* judge_payload();
  const char* judge_message() const;
  std::uint32_t payload_length() const noexcept;

  From from_;
  std::vector<std::string> messages_;  // how each begins
  std::string node_;
  std::string begin_;  // of the payload under way, the judged part
  std::array<std::byte, 32> header_{};
  std::size_t filled_ = 0;
  std::uint32_t payload_left_ = 0;
  std::uint64_t frames_ = 0;  // whose header was taken
};

}  // namespace troupe
