#include "actors/coordinator/resumption.hpp"

#include "tests/catch.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

constexpr Resumption::Time kStart{100s};

ProcessId life(int slot, std::uint64_t incarnation = 1) { return {slot, incarnation}; }

// Two members, of slots 0 and 1, of which these lives have joined again.
ProcessTable table(const std::vector<ProcessId>& joined) {
  ProcessTable processes;
  processes.make_current({.generation = 3, .members = {{life(0), "host", false}, {life(1), "host", false}}});
  for (const auto& process : joined) {
    JoinedProcess entry;
    entry.joined.process = process;
    processes.add(std::move(entry));
  }
  return processes;
}

}  // namespace

TEST_CASE("[L05] a restarted coordinator waits for the members of its journal, until they are late") {
  Resumption resumption(1);
  resumption.begin(kStart);
  CHECK_FALSE(resumption.settle(table({life(0)}), kStart));
  const auto missing = resumption.settle(table({life(0)}), kStart + 1s);
  REQUIRE(missing);
  REQUIRE(missing->size() == 1);
  CHECK(missing->front().member.process == life(1));
  CHECK_FALSE(missing->front().dead);
  CHECK(resumption.settle(table({}), kStart)->empty());  // once
}

TEST_CASE("[L05] a member is missing where its replacement has joined in its place") {
  Resumption resumption(1);
  resumption.begin(kStart);
  const auto processes = table({life(0, 2), life(1)});
  resumption.heard_of({.host = "host", .started = {life(0, 2), life(1)}}, processes.current());
  const auto missing = resumption.settle(processes, kStart - 1s);
  REQUIRE(missing);
  REQUIRE(missing->size() == 1);
  CHECK(missing->front().member.process == life(0));
  CHECK(missing->front().dead);
}

TEST_CASE("[L05] a member that dies before it comes back is dead, not late") {
  Resumption resumption(1);
  resumption.begin(kStart);
  const auto processes = table({life(0, 2), life(1)});
  resumption.heard_of({.host = "host", .started = {life(0), life(1)}}, processes.current());
  CHECK_FALSE(resumption.settle(processes, kStart - 1s));
  resumption.exited(life(0), processes);
  resumption.exited(life(0), processes);
  resumption.exited(life(1, 7), processes);  // no member
  CHECK(resumption.dead() == 1);
  const auto missing = resumption.settle(processes, kStart - 1s);
  REQUIRE(missing);
  REQUIRE(missing->size() == 1);
  CHECK((missing->front().member.process == life(0) && missing->front().dead));
}
