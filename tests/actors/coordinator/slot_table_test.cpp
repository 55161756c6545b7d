#include "actors/coordinator/slot_table.hpp"

#include "tests/catch.hpp"

using namespace troupe;

namespace {

struct Agent {
  NodeAgentActor address() const { return caf::actor_cast<NodeAgentActor>(caf::actor(self)); }

  caf::actor_system_config config;
  caf::actor_system system{config};
  caf::scoped_actor self{system};
};

}  // namespace

TEST_CASE("[L05] a slot is started again where recovery is on, its host has an agent, and it is no spare's") {
  const Agent agent;
  const SlotTable::Time now{};
  int drawn = 0;
  const auto draw = [&] { return static_cast<std::uint64_t>(++drawn); };
  RecoveryOptions recovery;
  recovery.enabled = GENERATE(true, false);
  SlotTable slots(recovery, 2);
  slots.set_agent("a", agent.address());
  for (const int slot : {0, 2}) slots.set_host(slot, "a");
  slots.set_host(1, "b");

  CHECK_FALSE(slots.restart(1, now, draw).agent);  // no agent there
  CHECK_FALSE(slots.restart(2, now, draw).agent);  // a spare's: the job has ranks enough to start
  CHECK(drawn == 0);
  CHECK(slots.starting() == 0);

  const auto started = slots.restart(0, now, draw);
  CHECK(static_cast<bool>(started.agent) == recovery.enabled);
  CHECK(slots.starting() == (recovery.enabled ? 1 : 0));
  if (recovery.enabled) CHECK((started.order.process == ProcessId{0, 1}));
}

TEST_CASE("[R07] after the same end of two lives in a row nothing is started again") {
  const Agent agent;
  RecoveryOptions recovery;
  recovery.enabled = true;
  SlotTable slots(recovery, 2);
  slots.set_agent("a", agent.address());
  for (const int slot : {0, 1}) slots.set_host(slot, "a");
  const auto restarts = [&](int slot) {
    return static_cast<bool>(slots.restart(slot, SlotTable::Time{}, [] { return std::uint64_t{7}; }).agent);
  };
  slots.explain_death(1, {"signal 11", 5});
  slots.explain_death(0, {"signal 11", 0});  // of another slot
  slots.explain_death(1, {"", 0});           // by another's hand, between two of the same
  slots.explain_death(1, {"signal 11", 0});
  CHECK(slots.program_fault().empty());
  CHECK(restarts(1));
  slots.explain_death(1, {"signal 11", 1});
  CHECK(slots.program_fault() == "slot 1 on a died twice in the same way: signal 11, step 1 of its life");
  CHECK_FALSE(restarts(1));
  CHECK_FALSE(restarts(0));
}

TEST_CASE("[K01] a slot is that of the process which its host's agent has started, or was told to start") {
  const Agent agent;
  RecoveryOptions recovery;
  recovery.enabled = true;
  SlotTable slots(recovery, 2);
  CHECK(slots.refusal({0, 5}).empty());  // nothing is known yet
  slots.set_ordered({0, 5}, "a");
  CHECK(slots.refusal({0, 6}).empty());  // "a" has no agent now that could have started it
  slots.set_agent("a", agent.address());
  CHECK(slots.refusal({0, 5}).empty());
  CHECK_THAT(slots.refusal({0, 6}), Catch::Contains("slot 0 belongs to a process that the agent of a started"));
  CHECK(slots.refusal({1, 6}).empty());
  CHECK(slots.restart(0, {}, [] { return std::uint64_t{8}; }).agent);
  CHECK(slots.refusal({0, 8}).empty());
  CHECK_FALSE(slots.refusal({0, 5}).empty());
}
