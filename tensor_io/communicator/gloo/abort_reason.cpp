#include "tensor_io/communicator/gloo/abort_reason.hpp"

#include <c10/core/ScalarType.h>

#include <cstring>
#include <type_traits>

namespace troupe {
namespace {

// The record as it travels: without its `finished`, which has values that are none.
struct Fixed {
  std::uint64_t sequence;
  std::int64_t numel, step, started_ns;
  std::int32_t peer;
  std::uint8_t code, kind, reduce_op;
  std::int8_t dtype;
  char label[48];
};
static_assert(std::is_trivially_copyable_v<Fixed> && sizeof(Fixed::label) == sizeof(CollectiveRecord::label));

}  // namespace

std::string FailureWord::to_bytes() const {
  Fixed fixed{};
  fixed.sequence = record.sequence;
  fixed.numel = record.numel;
  fixed.step = record.step;
  fixed.started_ns = record.started_ns;
  fixed.peer = record.peer;
  fixed.code = static_cast<std::uint8_t>(code);
  fixed.kind = static_cast<std::uint8_t>(record.kind);
  fixed.reduce_op = record.reduce_op;
  fixed.dtype = record.dtype;
  std::memcpy(fixed.label, record.label.data(), sizeof fixed.label);
  return std::string(reinterpret_cast<const char*>(&fixed), sizeof fixed) + cause;
}

FailureWord FailureWord::of(std::string_view bytes) {
  FailureWord word;
  Fixed fixed{};
  if (bytes.size() < sizeof fixed) return word;
  std::memcpy(&fixed, bytes.data(), sizeof fixed);
  const bool known = fixed.code <= static_cast<std::uint8_t>(ErrorCode::internal) &&
                     fixed.kind <= static_cast<std::uint8_t>(CollectiveKind::allocate) && fixed.dtype >= -1 &&
                     fixed.dtype < static_cast<int>(c10::ScalarType::NumOptions);
  if (!known) return word;
  word.code = static_cast<ErrorCode>(fixed.code);
  word.record.sequence = fixed.sequence;
  word.record.numel = fixed.numel;
  word.record.step = fixed.step;
  word.record.started_ns = fixed.started_ns;
  word.record.peer = fixed.peer;
  word.record.kind = static_cast<CollectiveKind>(fixed.kind);
  word.record.reduce_op = fixed.reduce_op;
  word.record.dtype = fixed.dtype;
  std::memcpy(word.record.label.data(), fixed.label, sizeof fixed.label - 1);  // the last stays NUL
  word.cause = bytes.substr(sizeof fixed);
  return word;
}

}  // namespace troupe
