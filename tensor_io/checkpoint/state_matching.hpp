#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor_io/layout/named_state.hpp"

namespace troupe {

/// The differences between saved and live tensors, one sentence fragment per tensor. Names are sorted.
struct StateDifference {
  std::vector<std::string> missing;  ///< live, not saved
  std::vector<std::string> extra;    ///< saved, not live
  std::vector<std::pair<std::string, std::string>>
      renamed;                         ///< saved name, live name: the only ones left over with their shape and dtype
  std::vector<std::string> different;  ///< name and the two shapes, or dtypes

  /// Whether nothing differs.
  bool empty() const noexcept { return missing.empty() && extra.empty() && renamed.empty() && different.empty(); }
  /// The first three of each kind, and the number of the others.
  std::string describe() const;
};

/// Compares names, shapes and dtypes, not values. A pure function.
StateDifference compare_state(const NamedTensors& saved, const NamedTensors& live);

/// The tensors whose names start with `prefix` ("model."), under their full names; the tensors are shared.
NamedTensors with_prefix(const NamedTensors& tensors, std::string_view prefix);

/// Copies each saved tensor's values into the live one of the same name, outside of autograd; live tensors may be views
/// and on any device. All or nothing: throws Error(mismatch) before the first copy if anything differs. `operation` is
/// for the error: "loading the model".
void copy_state(const NamedTensors& saved, const NamedTensors& live, const std::string& operation);

}  // namespace troupe
