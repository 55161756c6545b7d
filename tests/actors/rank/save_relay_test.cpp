#include "actors/rank/save_relay.hpp"

#include "tests/catch.hpp"

using namespace troupe;

namespace {

PartSaved part_of(const std::string& id) {
  PartSaved part;
  part.attempt = {60, id};
  return part;
}

SaveEnded end_of(const std::string& id) {
  SaveEnded ended;
  ended.attempt = {60, id};
  return ended;
}

}  // namespace

TEST_CASE("[C02] a rank that ends does not end the save of which it has written a part") {
  SaveRelay relay;
  relay.part_saved(part_of("a"));
  relay.fail({.code = ErrorCode::device_lost});
  CHECK_FALSE(relay.part());
  CHECK_FALSE(relay.ended());
}

TEST_CASE("[C02] a restarted coordinator hears of the part whose save has not ended, and of the last end") {
  SaveRelay relay;
  relay.part_saved(part_of("a"));
  REQUIRE(relay.part());
  CHECK(relay.part()->attempt.id == "a");
  relay.end(end_of("a"));
  CHECK_FALSE(relay.part());
  REQUIRE(relay.ended());
  CHECK(relay.ended()->attempt.id == "a");
  // It ended for another rank's sake, before this rank's part was written.
  relay.part_saved(part_of("b"));
  relay.part_saved(part_of("a"));
  REQUIRE(relay.part());
  CHECK(relay.part()->attempt.id == "b");
}
