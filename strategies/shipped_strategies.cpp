#include "strategies/shipped_strategies.hpp"

#include "actors/strategy/strategy.hpp"
#include "strategies/hooks/comm_hooks.hpp"
#include "strategies/mesh/mesh_parallel.hpp"
#include "strategies/replicated/ddp.hpp"
#include "strategies/replicated/local_steps.hpp"
#include "strategies/replicated/parameter_server.hpp"
#include "strategies/sharded/sharded_strategy.hpp"
#include "strategies/switching/switching_strategy.hpp"

namespace troupe {

void register_shipped_strategies() {
  const auto known = strategies();
  if (!known.contains("ddp")) register_ddp();
  if (!known.contains("zero1")) register_sharded();
  if (!known.contains("diloco")) register_local_steps();
  if (!known.contains("pipeline")) register_mesh_parallel();
  if (!known.contains("parameter_server")) register_parameter_server();
  register_switching();
  register_comm_hooks();
}

}  // namespace troupe
