#include "actors/compute/rejoin.hpp"

namespace troupe {

Rejoin how_to_rejoin(const Membership& next, const Standing& standing) noexcept {
  if (standing.goes_back) return Rejoin::roll_back;
  if (next.resume_step == standing.steps_done + 1 && standing.voted_step == standing.steps_done && standing.in_step)
    return Rejoin::commit;
  if (next.resume_step != standing.steps_done && standing.whole) return Rejoin::refuse;
  return Rejoin::roll_back;
}

}  // namespace troupe
