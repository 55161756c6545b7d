#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "actors/strategy/strategy_context.hpp"
#include "strategies/mesh/mesh.hpp"
#include "tensor_io/communicator/communicator.hpp"

namespace troupe {

/// The ranks of `from` with the same `color`, in the order of ranks, as a communicator of this generation, which is
/// registered as `what group color`. Collective over `from`.
std::shared_ptr<Communicator> split_off(const StrategyContext& context, Communicator& from, int color,
                                        const std::string& what);

/// One rank's communicators on a mesh: with the ranks that differ from it only in tp, in dp, in pp. Of one generation;
/// compute's thread.
struct MeshGroups {
  std::shared_ptr<Communicator> tp, dp, pp;

  void set_step(std::int64_t step) const;
};
/// Collective over all ranks.
MeshGroups make_mesh_groups(const StrategyContext& context, const Mesh& mesh);

}  // namespace troupe
