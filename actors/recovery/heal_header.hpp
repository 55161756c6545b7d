#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "tensor_io/layout/named_state.hpp"

namespace troupe {

/// Sent before the tensors: all else that a newcomer must know.
struct HealHeader {
  std::map<std::string, std::string> strategy, notes;
  double loss_scale = 1;
  std::int64_t growth_tracker = 0;

  std::string to_text() const;
  /// Throws Error(bad_data).
  static HealHeader of(std::string_view text);
};

/// Names, shapes and types, for a newcomer that has no such tensors yet; and such tensors of zeros. Throws
/// Error(bad_data) for any other text, or if they would have more than `most` bytes together.
std::string shapes_of(const NamedTensors& tensors);
NamedTensors zeros_of_shapes(std::string_view text, c10::Device device, std::int64_t most = std::int64_t{1} << 44);

}  // namespace troupe
