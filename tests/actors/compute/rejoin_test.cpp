#include "actors/compute/rejoin.hpp"

#include "tests/catch.hpp"

using namespace troupe;

namespace {

Rejoin way(std::int64_t resume_step, const RankProgress& progress) {
  Membership next;
  next.resume_step = resume_step;
  return how_to_rejoin(next, progress);
}

}  // namespace

TEST_CASE("[L05] a rank commits the step that it voted on if anybody did, and runs it again if nobody did") {
  CHECK((way(8, {7, 7, true, true, false}) == Rejoin::commit));
  CHECK((way(7, {7, 7, true, true, false}) == Rejoin::roll_back));
  CHECK((way(7, {7, 6, true, true, false}) == Rejoin::roll_back));
}

TEST_CASE("[L05] a rank whose state fits nobody's is refused, one that will be healed is not") {
  CHECK((way(8, {7, 6, true, true, false}) == Rejoin::refuse));   // it did not vote
  CHECK((way(9, {7, 7, true, true, false}) == Rejoin::refuse));   // two steps behind
  CHECK((way(7, {8, 7, true, true, false}) == Rejoin::refuse));   // ahead of all others
  CHECK((way(8, {7, 7, true, false, false}) == Rejoin::refuse));  // it has left the step
  CHECK((way(9, {7, 7, false, true, false}) == Rejoin::roll_back));
  CHECK((way(9, {7, 7, true, true, true}) == Rejoin::roll_back));  // all go back to a snapshot
}
