// Parts of a simulated rank, without a job: its collectives and its saves.
#include "actors/simulator/model_collectives.hpp"
#include "actors/simulator/rank_saves.hpp"
#include "tests/catch.hpp"

using namespace troupe;
using namespace troupe::simulator;

namespace {

constexpr auto kProgram = ModelCollectives::kProgram;

void enter(ModelCollectives& collectives, std::uint64_t generation, int rank) {
  Membership three;
  three.generation = generation;
  three.members.resize(3);
  collectives.enter(three, rank);
  collectives.connect([](const ErrorReport&) {});
}

ModelCollectives entered(std::uint64_t generation, int rank) {
  ModelCollectives collectives;
  enter(collectives, generation, rank);
  return collectives;
}

CollectiveRecord called(const std::string& label) {
  CollectiveRecord record;
  record.kind = CollectiveKind::all_gather;
  label.copy(record.label.data(), record.label.size() - 1);
  return record;
}

Piece piece_of(std::uint64_t generation, int rank, const std::string& label, const std::string& bytes) {
  return entered(generation, rank).begin(kProgram, called(label), bytes, nullptr);
}

ErrorReport because(const std::string& cause) { return {.code = ErrorCode::peer_lost, .cause = cause}; }

}  // namespace

TEST_CASE("[L06] a simulated collective ends when all pieces are there, and has them by rank") {
  auto first = entered(1, 0);
  ModelCollectives::Pieces got;
  first.begin(kProgram, called("vote"), "a", [&](const ModelCollectives::Pieces& pieces) { got = pieces; });
  first.add(piece_of(1, 2, "vote", "c"));
  CHECK(first.missing() == std::vector<int>{1});
  CHECK_FALSE(first.complete());
  first.add(piece_of(1, 1, "vote", "b"));
  const auto then = first.complete();
  REQUIRE(then);
  CHECK_FALSE(first.under_way());
  then();
  CHECK(got == ModelCollectives::Pieces{"a", "b", "c"});
}

TEST_CASE("[L06] a piece of another simulated collective does not count, also if it is the first on its rank") {
  auto first = entered(1, 0);
  first.begin(kProgram, called("mean"), "a", nullptr);
  first.add(piece_of(1, 1, "norm", "b"));
  CHECK(first.missing() == std::vector<int>{1, 2});
}

TEST_CASE("[L06] a piece that comes before its simulated generation is kept for it") {
  auto first = entered(1, 0);
  first.add(piece_of(2, 1, "vote", "b"));
  enter(first, 2, 0);
  first.begin(kProgram, called("vote"), "a", nullptr);
  CHECK(first.missing() == std::vector<int>{2});
}

TEST_CASE("[L06] a simulated generation is broken once, and an abort gives the reason in place of a lost peer's") {
  auto first = entered(1, 0);
  CHECK_FALSE(first.lose_peer(2, because("another generation")));
  CHECK(first.lose_peer(1, because("rank 1 is gone")));
  CHECK_FALSE(first.lose_peer(1, because("rank 2 is gone")));
  CHECK(first.broken()->cause == "rank 1 is gone");
  CHECK(first.abort(1, because("the job is over")));
  CHECK_FALSE(first.abort(1, because("again")));
  CHECK_FALSE(first.lose_peer(1, because("late")));
  CHECK(first.broken()->cause == "the job is over");
  enter(first, 2, 0);
  CHECK_FALSE(first.broken());
}

TEST_CASE("[L06] only the end of its own save lets a simulated rank go on, and says whether it was lost") {
  RankSaves saves;
  const SaveAttempt mine{10, saves.next_id(1, 2)}, other{20, saves.next_id(1, 2)};
  saves.begin(mine);
  bool went_on = false;
  saves.after_end([&] { went_on = true; });
  CHECK_FALSE(saves.end({other, {.code = ErrorCode::ok}}));
  CHECK(saves.under_way());
  const auto then = saves.end({mine, {.code = ErrorCode::io}});
  REQUIRE(then);
  then();
  CHECK(went_on);
  CHECK_FALSE(saves.under_way());
  CHECK(saves.lost());
  CHECK_FALSE(saves.end({mine, {.code = ErrorCode::ok}}));
  CHECK(saves.lost());
}
