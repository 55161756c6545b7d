#include "actors/compute/rejoin.hpp"

namespace troupe {

Rejoin how_to_rejoin(const Membership& next, const RankProgress& progress) noexcept {
  if (progress.goes_back) return Rejoin::roll_back;
  if (next.resume_step == progress.steps_done + 1 && progress.voted_step == progress.steps_done && progress.in_step)
    return Rejoin::commit;
  if (next.resume_step != progress.steps_done && progress.whole) return Rejoin::refuse;
  return Rejoin::roll_back;
}

}  // namespace troupe
