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

constexpr std::size_t kJudged = 512;  // bytes of a payload: the names are there

}  // namespace

// A message begins with the stages on its way, none, with the number of its type, two zeros as it has none, and with
// the names of its parts after their length, which is one byte.
FrameCheck::FrameCheck(From from, const std::vector<std::string>& messages) : from_(from) {
  for (const auto& names : messages)
    messages_.push_back(std::string(3, '\0') + static_cast<char>(names.size()) + names);
}

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
    return "the first frame is not a handshake";
  if (frames_ > 0 && operation == server_handshake) return "a server's handshake";  // CAF's clients say theirs twice
  if (from_ == From::client && operation == routed_message) return "a frame for another process";
  if (handshake && length > (from_ == From::client ? kLongestNode : kLongestHandshake))
    return "a handshake that is too long";
  if (length > kLongestPayload) return "a frame that is too long";
  if (operation == heartbeat ? length != 0 : length == 0) return "a frame with the wrong length";
  return nullptr;
}

// The payload of a client's frame, or its first `kJudged` bytes. A handshake is the node's own name and nothing else;
// what is said of a death, or asked to be told of one, begins with the name of who says it.
const char* FrameCheck::judge_payload() {
  const auto operation = std::to_integer<unsigned>(header_[0]);
  if (operation == client_handshake && node_.empty()) node_ = begin_;
  if (operation == client_handshake && begin_ != node_) return "a second name";
  if ((operation == monitor_message || operation == down_message) && !begin_.starts_with(node_))
    return "a frame in another's name";
  return operation == direct_message ? judge_message() : nullptr;
}

const char* FrameCheck::judge_message() const {
  const bool known = std::any_of(messages_.begin(), messages_.end(),
                                 [this](const auto& beginning) { return begin_.starts_with(beginning); });
  return known ? nullptr : "a message that no process of a job sends";
}

const char* FrameCheck::take(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (payload_left_ > 0) {
      const auto n = std::min<std::size_t>(payload_left_, bytes.size());
      const auto judged = std::min(kJudged, static_cast<std::size_t>(payload_length()));
      if (from_ == From::client && begin_.size() < judged) {
        const auto first = bytes.first(std::min(n, judged - begin_.size()));
        begin_.append(reinterpret_cast<const char*>(first.data()), first.size());
        if (begin_.size() == judged) {
          if (const char* wrong = judge_payload()) return wrong;
        }
      }
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
    begin_.clear();
    ++frames_;
  }
  return nullptr;
}

}  // namespace troupe
