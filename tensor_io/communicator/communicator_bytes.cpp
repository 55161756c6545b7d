// Byte strings over the tensor collectives: a small frame with the length goes first, and carries the whole string
// where it fits, so a vote of a hundred bytes costs one collective.
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "tensor_io/communicator/communicator.hpp"

namespace troupe {
namespace {

constexpr std::int64_t kFrame = 512;
constexpr std::int64_t kInline = kFrame - static_cast<std::int64_t>(sizeof(std::int64_t));
constexpr std::int64_t kMost = std::int64_t{1} << 31;
using Frame = std::array<char, kFrame>;

Frame pack(std::string_view bytes) {
  Frame frame{};
  const auto length = static_cast<std::int64_t>(bytes.size());
  std::memcpy(frame.data(), &length, sizeof length);
  std::memcpy(frame.data() + sizeof length, bytes.data(), std::min(length, kInline));
  return frame;
}

std::int64_t length_of(const char* frame) {
  std::int64_t length = 0;
  std::memcpy(&length, frame, sizeof length);
  if (length < 0 || length > kMost)
    throw Error(ErrorCode::mismatch, "exchange of bytes", "a rank sent " + std::to_string(length) + " of them");
  return length;
}

at::Tensor view_of(char* data, std::int64_t bytes) { return at::from_blob(data, {bytes}, at::kByte); }

}  // namespace

std::vector<std::string> Communicator::exchange_frames(std::string_view bytes, std::string_view label,
                                                       std::int64_t* max_bytes) {
  Frame own = pack(bytes);
  std::vector<char> frames(kFrame * world_size());
  all_gather(view_of(frames.data(), kFrame * world_size()), view_of(own.data(), kFrame), label);
  std::vector<std::string> strings(world_size());
  *max_bytes = 0;
  for (int r = 0; r < world_size(); ++r) {
    const char* frame = frames.data() + r * kFrame;
    const std::int64_t length = length_of(frame);
    *max_bytes = std::max(*max_bytes, length);
    strings[r].resize(length);
    std::memcpy(strings[r].data(), frame + sizeof length, std::min(length, kInline));
  }
  return strings;
}

std::vector<std::string> Communicator::all_gather_bytes(std::string_view bytes, std::string_view label) {
  std::int64_t longest = 0;
  auto strings = exchange_frames(bytes, label, &longest);
  if (longest <= kInline) return strings;
  std::string own(bytes);
  own.resize(longest);
  std::string all(longest * world_size(), '\0');
  all_gather(view_of(all.data(), longest * world_size()), view_of(own.data(), longest), label);
  for (int r = 0; r < world_size(); ++r) strings[r].assign(all, r * longest, strings[r].size());
  return strings;
}

std::vector<std::string> Communicator::gather_bytes(std::string_view bytes, int root, std::string_view label) {
  if (root < 0 || root >= world_size())
    throw Error(ErrorCode::usage, "gather_bytes", "no rank " + std::to_string(root));
  std::int64_t longest = 0;
  auto strings = exchange_frames(bytes, label, &longest);
  if (longest > kInline) {
    std::string own(bytes);
    own.resize(longest);
    std::string all(rank() == root ? longest * world_size() : 0, '\0');
    gather(view_of(all.data(), static_cast<std::int64_t>(all.size())), view_of(own.data(), longest), root, label);
    for (int r = 0; rank() == root && r < world_size(); ++r) strings[r].assign(all, r * longest, strings[r].size());
  }
  return rank() == root ? strings : std::vector<std::string>{};
}

std::string Communicator::broadcast_bytes(std::string bytes, int root, std::string_view label) {
  Frame frame = pack(bytes);
  broadcast(view_of(frame.data(), kFrame), root, label);
  const std::int64_t length = length_of(frame.data());
  if (rank() != root) bytes.assign(frame.data() + sizeof length, std::min(length, kInline));
  if (length > kInline) {
    bytes.resize(length);
    broadcast(view_of(bytes.data(), length), root, label);
  }
  return bytes;
}

}  // namespace troupe
