#include "actors/coordinator/save_round.hpp"

#include "tests/catch.hpp"

using namespace troupe;

namespace {

const SaveAttempt kSaveAttempt{30, "x"};
const std::vector<ProcessId> kSavers{{0, 1}, {1, 1}, {2, 1}};

PartSaved saved_part(int rank, ErrorCode code = ErrorCode::ok) {
  return {kSavers[static_cast<std::size_t>(rank)], 1, kSaveAttempt, rank, 3, true, {code, rank, {}, 30, {}, "why", {}}};
}

SaveRound all_written() {
  SaveRound round(kSaveAttempt, kSavers, true);
  for (const int rank : {2, 0, 1}) {
    CHECK((round.decide().action == SaveRound::Action::wait));
    round.written(saved_part(rank));
  }
  return round;
}

}  // namespace

TEST_CASE("[C02] a checkpoint is made once, when every part is there, and its outcome is everybody's") {
  auto round = all_written();
  const auto decision = round.decide();
  CHECK((decision.action == SaveRound::Action::publish));
  CHECK((decision.publisher == kSavers[0]));
  CHECK((round.order().attempt == kSaveAttempt && round.order().ranks == 3 && round.order().best));
  CHECK((round.decide().action == SaveRound::Action::wait));
  round.published({kSaveAttempt, {30, "path", 5, 0.1, {}}, {ErrorCode::ok, 0, {}, 30, {}, {}, {}}});
  CHECK((round.decide().action == SaveRound::Action::end));
  CHECK(round.decide().ended.saved.path == "path");
}

TEST_CASE("[C02] the first part that cannot be written ends the save") {
  SaveRound round(kSaveAttempt, kSavers, false);
  round.written(saved_part(1));
  CHECK((round.missing() == std::vector<int>{0, 2}));
  round.written(saved_part(2, ErrorCode::io));
  round.written(saved_part(0));
  const auto decision = round.decide();
  CHECK((decision.action == SaveRound::Action::end));
  CHECK((decision.ended.report.code == ErrorCode::io && decision.ended.report.rank == 2));
}

TEST_CASE("[C02] a rank lost before its part was written ends the save, one lost afterwards does not") {
  SECTION("before") {
    SaveRound round(kSaveAttempt, kSavers, false);
    round.written(saved_part(0));
    round.lost(kSavers[1], "SIGKILL");
    const auto decision = round.decide();
    CHECK((decision.action == SaveRound::Action::end));
    CHECK((decision.ended.report.code == ErrorCode::peer_lost));
    CHECK_THAT(decision.ended.report.to_string(),
               Catch::Contains("rank 1 was lost before its part") && Catch::Contains("SIGKILL"));
  }
  SECTION("afterwards; the publisher is replaced as long as there is one") {
    auto round = all_written();
    CHECK((round.decide().publisher == kSavers[0]));
    round.lost(kSavers[1], "x");
    CHECK((round.decide().action == SaveRound::Action::wait));
    round.lost(kSavers[0], "x");
    CHECK((round.decide().action == SaveRound::Action::publish));
    round.lost({0, 2}, "not a member");
    CHECK((round.decide().action == SaveRound::Action::wait));
    round.lost(kSavers[2], "x");
    CHECK((round.decide().action == SaveRound::Action::end));
    CHECK((round.decide().ended.report.code == ErrorCode::peer_lost));
  }
}

TEST_CASE("[C02] what others say, or say twice, changes nothing") {
  auto round = all_written();
  round.decide();
  auto stranger = saved_part(0, ErrorCode::io);
  stranger.process = {7, 1};
  round.written(stranger);
  round.written(saved_part(1));
  CHECK((round.decide().action == SaveRound::Action::wait));
}

TEST_CASE("[C02] a publisher that comes back over another connection gets its order again") {
  auto round = all_written();
  CHECK((round.decide().action == SaveRound::Action::publish));
  round.came_back(kSavers[1]);
  CHECK((round.decide().action == SaveRound::Action::wait));
  round.came_back(kSavers[0]);
  const auto again = round.decide();
  CHECK((again.action == SaveRound::Action::publish));
  CHECK((again.publisher == kSavers[0]));
  CHECK((round.decide().action == SaveRound::Action::wait));
}

TEST_CASE("[C02] a rank that was taken for lost and has come back publishes") {
  SaveRound round(kSaveAttempt, kSavers, true);
  round.written(saved_part(0));
  round.lost(kSavers[0], "its connection closed");
  round.came_back(kSavers[0]);
  round.written(saved_part(1));
  round.written(saved_part(2));
  CHECK((round.decide().publisher == kSavers[0]));
}
