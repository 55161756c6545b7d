#include "actors/messages/fields.hpp"

#include <vector>

#include "actors/messages/messages.hpp"
#include "tests/catch.hpp"

using namespace troupe;

namespace {

template <class T>
T over_the_wire(T message) {
  std::vector<char> bytes;
  caf::binary_serializer sink(nullptr, bytes);
  REQUIRE_FALSE(sink(message));
  caf::binary_deserializer source(nullptr, bytes.data(), bytes.size());
  T copy;
  REQUIRE_FALSE(source(copy));
  REQUIRE(source.remaining() == 0);
  return copy;
}

struct Inner {
  std::vector<int> numbers;
  bool set = false;
};
struct Outer {
  Inner inner;
  std::string text;
  const char* other = nullptr;
};

}  // namespace

TEST_CASE("the fields of a struct are those of its definition, in that order") {
  static_assert(field_count<Inner>() == 2 && field_count<Outer>() == 3 && field_count<CoordinatorTick>() == 0);
  static_assert(field_count<ReportCollectives>() == 1 && field_count<RankInterrupted>() == 16);
  static_assert(name_of_struct<Outer>() == "Outer" && name_of_struct<JoinJob>() == "JoinJob");
  Outer outer{{{1, 2}, true}, "text"};
  std::get<1>(fields_of(outer)) = "changed";
  CHECK(outer.text == "changed");
  CHECK(std::get<0>(fields_of(std::as_const(outer))).numbers.size() == 2);
}

TEST_CASE("a message has all its fields behind the wire") {
  const auto report = over_the_wire(ErrorReport{ErrorCode::mismatch, 3, "reducer", 7, "all_reduce", "numel", "look"});
  CHECK(report.code == ErrorCode::mismatch);
  CHECK(report.to_string() ==
        ErrorReport{ErrorCode::mismatch, 3, "reducer", 7, "all_reduce", "numel", "look"}.to_string());
  CHECK(over_the_wire(InjectFault{ChaosKind::slow, 12}).kind == ChaosKind::slow);
  const auto next = over_the_wire(Membership{4, {{{0, 7}, "a", false}, {{1, 8}, "b", true}}, 12, 2, "votes", "why"});
  REQUIRE(next.members.size() == 2);
  CHECK(next.members[1].process == ProcessId{1, 8});
  CHECK(next.members[1].newcomer);
  CHECK((next.generation == 4 && next.resume_step == 12 && next.tasks_done == 2 && next.reason == "why"));
  RankInterrupted interrupted;
  interrupted.unreachable = {2, 3};
  interrupted.save = "last";
  CHECK(over_the_wire(interrupted).unreachable == interrupted.unreachable);
  CHECK(over_the_wire(interrupted).save == "last");
}
