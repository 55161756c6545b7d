#pragma once
#include <string>
#include <string_view>

#include "tensor_io/base/error.hpp"
#include "tensor_io/communicator/collective_ledger.hpp"

namespace troupe {

/// The word that a rank leaves at the rendezvous when its communicator fails. It is the rank's reason, or, if it only
/// saw that a connection ended or a message did not come, its operation at that time.
struct FailureWord {
  ErrorCode code = ErrorCode::internal;
  CollectiveRecord record;
  std::string cause;  ///< empty: a symptom only

  std::string to_bytes() const;
  /// From any bytes: bytes that no rank has written give a word without a reason.
  static FailureWord of(std::string_view bytes);
};

}  // namespace troupe
