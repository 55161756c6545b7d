#include "actors/compute/graph_kinds.hpp"

namespace troupe {

std::string graph_kind(std::span<const at::Tensor> inputs, bool trains, bool first, bool last) {
  std::string kind = trains ? "" : "eval ";
  if (first) kind += "first ";
  if (last) kind += "last ";
  for (const auto& input : inputs) {
    kind += c10::toString(input.scalar_type());
    for (const auto size : input.sizes()) kind += " " + std::to_string(size);
    kind += input.is_contiguous() ? ", " : " strided, ";
  }
  return kind;
}

GraphKinds::Turn GraphKinds::next(const std::string& kind) {
  const auto found = times_.find(kind);
  if (found == times_.end()) {
    if (times_.size() < kKnown) times_[kind] = 1;
    return Turn::run;
  }
  auto& times = found->second;
  if (times < 0) return Turn::replay;
  if (times < kWarmUp) {
    ++times;
    return Turn::run;
  }
  if (written_ == kMost) return Turn::run;
  times = -1;
  ++written_;
  return Turn::write;
}

void GraphKinds::drop(const std::string& kind) {
  if (times_.erase(kind) > 0) --written_;
}

}  // namespace troupe
