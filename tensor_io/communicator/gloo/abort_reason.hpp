#pragma once
#include <string>
#include <string_view>

#include "tensor_io/base/error.hpp"
#include "tensor_io/communicator/collective_ledger.hpp"

namespace troupe {

/// What a rank leaves at the rendezvous when its communicator fails: its reason, or, if it only saw that a connection
/// ended or that a message did not come, what it was doing then.
struct FailureWord {
  ErrorCode code = ErrorCode::internal;
  CollectiveRecord record;
  std::string cause;  ///< empty: a symptom only

  std::string to_bytes() const;
  /// Any bytes: those that no rank has left are a word without a reason.
  static FailureWord of(std::string_view bytes);
};

}  // namespace troupe
