#include "actors/coordinator/slot_table.hpp"

#include "tests/catch.hpp"

using namespace troupe;

TEST_CASE("[L05] a slot is started again where recovery is on, its host has an agent, and it is no spare's") {
  caf::actor_system_config config;
  caf::actor_system system(config);
  caf::scoped_actor self(system);
  const SlotTable::Time now{};
  int drawn = 0;
  const auto draw = [&] { return static_cast<std::uint64_t>(++drawn); };
  RecoveryOptions recovery;
  recovery.enabled = GENERATE(true, false);
  SlotTable slots(recovery, 2);
  slots.set_agent("a", caf::actor_cast<NodeAgentActor>(caf::actor(self)));
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
