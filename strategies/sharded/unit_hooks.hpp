#pragma once
#include <memory>
#include <vector>

#include "actors/block/block_calls.hpp"
#include "strategies/sharded/unit_gathers.hpp"

namespace troupe {

/// What a unit's calls bring about: its parameters come before forward and before backward and go after them, and its
/// inputs get the dtype of its parameters.
///
/// A unit stays after forward where that would only bring it back at once: the last one of a forward, the units of a
/// recompute, and one whose output no hook can see (forward returned a type of the user's), which would otherwise be
/// missing in backward. What stays goes at the end of backward at the latest.
class UnitHooks {
 public:
  struct Options {
    bool reshard_after_forward = true;
    bool keep_units = false;  ///< what forward brought stays until end_backward, or an evaluation's end
    at::ScalarType input_dtype =
        at::ScalarType::Undefined;  ///< floating-point inputs of units are cast to it; Undefined: they are not
  };
  /// `gathers` may be nullptr: the parameters are always there.
  UnitHooks(std::shared_ptr<UnitGathers> gathers, Options options, std::size_t units);
  ~UnitHooks();
  UnitHooks(const UnitHooks&) = delete;
  UnitHooks& operator=(const UnitHooks&) = delete;

  /// `unit`: below the number of units.
  void add(BlockCalls& block, std::int32_t unit);
  /// The next forward is another micro-batch's, or another phase's.
  void end_backward();

 private:
  class Hook;
  struct State;
  std::shared_ptr<State> state_;
  std::vector<std::pair<std::weak_ptr<torch::nn::Module>, std::pair<BlockCalls*, std::shared_ptr<BlockHook>>>> hooks_;
};

}  // namespace troupe
