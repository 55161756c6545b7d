#pragma once
#include <memory>
#include <vector>

#include "actors/block/block_calls.hpp"
#include "strategies/sharded/unit_gathers.hpp"

namespace troupe {

/// The effects of a unit's calls: its parameters come before forward and before backward and go after them, and its
/// inputs get the dtype of its parameters.
///
/// A unit stays after forward if it would come back at once: the last one of a forward, and the units of a recompute.
/// It also stays if no hook can see its output (forward returned a type of the user's), since backward would miss it.
/// At the latest it goes at the end of backward.
class UnitHooks {
 public:
  struct Options {
    bool reshard_after_forward = true;
    bool keep_units = false;  ///< units of a forward stay until end_backward, or an evaluation's end
    at::ScalarType input_dtype =
        at::ScalarType::Undefined;  ///< floating-point inputs of units are cast to it; Undefined: not cast
  };
  /// `gathers` may be nullptr: the parameters are always there.
  UnitHooks(std::shared_ptr<UnitGathers> gathers, Options options, std::size_t units);
  ~UnitHooks();
  UnitHooks(const UnitHooks&) = delete;
  UnitHooks& operator=(const UnitHooks&) = delete;

  /// `unit`: below the number of units.
  void add(BlockCalls& block, std::int32_t unit);
  /// The next forward belongs to another micro-batch, or another phase.
  void end_backward();

 private:
  class Hook;
  struct State;
  std::shared_ptr<State> state_;
  std::vector<std::pair<std::weak_ptr<torch::nn::Module>, std::pair<BlockCalls*, std::shared_ptr<BlockHook>>>> hooks_;
};

}  // namespace troupe
