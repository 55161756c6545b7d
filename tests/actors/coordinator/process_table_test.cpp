#include "actors/coordinator/process_table.hpp"

#include "tests/catch.hpp"

using namespace troupe;

namespace {

ProcessId member_in(int slot) { return {slot, 1}; }

/// Three ranks of generation 2.
struct Table : ProcessTable {
  Table() {
    Membership members{.generation = 2, .members = {{member_in(0)}, {member_in(1)}, {member_in(2)}}};
    for (int slot = 0; slot < 3; ++slot) join(slot);
    make_current(members);
  }
  void join(int slot, bool member = false) {
    JoinedProcess entry;
    entry.joined.process = member_in(slot);
    entry.member = member;
    add(std::move(entry));
  }
  /// How many may leave when this rank has come to its loop's end.
  std::size_t leave_at(int slot, std::int64_t steps, std::uint64_t generation = 2) {
    loop_done({member_in(slot), generation, steps});
    return leave_loop().size();
  }
};

}  // namespace

TEST_CASE("[L05] ranks leave their loop when all have come to its end, each once") {
  Table table;
  CHECK(table.leave_at(0, 60) == 0);
  CHECK(table.leave_at(0, 60) == 0);
  CHECK(table.leave_at(1, 60) == 0);
  CHECK(table.leave_at(2, 60, 1) == 0);  // it was in the generation before
  CHECK(table.leave_at(2, 60) == 3);
  CHECK(table.leave_loop().empty());
  // Its connection broke, and the answer may be lost with it.
  table.join(1, true);
  CHECK(table.leave_at(1, 60) == 1);
  // The program has another loop.
  CHECK(table.leave_at(0, 90) == 0);
  CHECK(table.leave_at(1, 90) == 0);
  CHECK(table.leave_at(2, 90) == 3);
}

TEST_CASE(
    "[L05] a rank that has ended keeps no other in its loop, and a new generation begins without any at its end") {
  Table table;
  table.leave_at(0, 60);
  table.leave_at(1, 60);
  SECTION("ended") {
    table.find(member_in(2))->ended = ErrorReport{.code = ErrorCode::ok};
    CHECK(table.leave_loop().size() == 2);
  }
  SECTION("a new generation") {
    auto next = table.current();
    ++next.generation;
    table.make_current(next);
    CHECK(table.leave_at(2, 60, 3) == 0);
    CHECK(table.leave_at(0, 60, 3) == 0);
    CHECK(table.leave_at(1, 60, 3) == 3);
  }
}

TEST_CASE("[R07] a life's steps count from where its rank began, also if it is heard before it has healed") {
  Table table;
  ProcessId newcomer{1, 2};
  JoinedProcess entry;
  entry.joined.process = newcomer;
  table.add(std::move(entry));
  table.make_current({.generation = 3, .members = {{member_in(0)}, {newcomer}, {member_in(2)}}, .resume_step = 11});
  auto* process = table.find(newcomer);
  REQUIRE(process != nullptr);
  process->made(0);
  CHECK(process->steps_made() == 0);
  process->made(11);
  CHECK(process->steps_made() == 0);
  process->made(14);
  CHECK(process->steps_made() == 3);
}
