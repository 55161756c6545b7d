#include "tensor_io/communicator/gloo/abort_reason.hpp"

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstring>
#include <type_traits>

namespace troupe {
namespace {

// What travels of a record: all but its `finished`, which has values that are none.
constexpr std::size_t kRecordBytes = offsetof(CollectiveRecord, finished);
static_assert(std::is_trivially_copyable_v<CollectiveRecord> && std::is_standard_layout_v<CollectiveRecord>);

}  // namespace

std::string FailureWord::to_bytes() const {
  std::string bytes(1, static_cast<char>(code));
  bytes.append(reinterpret_cast<const char*>(&record), kRecordBytes);
  return bytes + cause;
}

FailureWord FailureWord::of(std::string_view bytes) {
  if (bytes.size() < 1 + kRecordBytes) return {};
  const auto code = static_cast<ErrorCode>(bytes[0]);
  FailureWord word{code, {}, std::string(bytes.substr(1 + kRecordBytes))};
  auto& record = word.record;
  std::memcpy(static_cast<void*>(&record), bytes.data() + 1, kRecordBytes);
  record.label.back() = '\0';
  const bool known = code <= ErrorCode::internal && record.kind <= CollectiveKind::allocate && record.dtype >= -1 &&
                     record.dtype < static_cast<int>(c10::ScalarType::NumOptions);
  return known ? word : FailureWord{};
}

}  // namespace troupe
