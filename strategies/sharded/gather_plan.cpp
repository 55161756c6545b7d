#include "strategies/sharded/gather_plan.hpp"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "tensor_io/files/xxh3.hpp"

namespace troupe {

std::int64_t GatherPlan::hash_of_requests() const {
  return static_cast<std::int64_t>(xxh3(std::as_bytes(std::span(requested_))));
}

void GatherPlan::begin_evaluation() {
  evaluation_ = true;
  if (always_.empty()) of_steps_ = std::exchange(units_, {});
}

void GatherPlan::end_phase(bool all_alike) {
  const auto requested = std::exchange(requested_, {});
  position_ = 0;
  if (std::exchange(evaluation_, false)) {
    if (always_.empty()) units_ = std::exchange(of_steps_, {});
    return;
  }
  if (all_alike || always_.empty()) units_ = all_alike ? requested : Units();
  if (always_.empty()) return;
  std::set<std::int32_t> planned;
  std::erase_if(units_, [&](std::int32_t unit) { return !planned.insert(unit).second; });
  for (const auto unit : always_) {
    if (planned.insert(unit).second) units_.push_back(unit);
  }
}

}  // namespace troupe
