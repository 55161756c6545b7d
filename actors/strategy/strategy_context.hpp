#pragma once
#include <torch/torch.h>
#include <caf/all.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/rank/reducer.hpp"
#include "actors/rank/strategy_options.hpp"
#include "tensor_io/communicator/communicator.hpp"

namespace troupe {

/// The means of a strategy in one generation. Everything outlives the strategy.
struct StrategyContext {
  int rank = 0;           ///< in this generation
  int world_size = 1;     ///< in this generation
  bool newcomer = false;  ///< the others hold the state: attach makes the layout and moves no values
  /// A running job changes its strategy after this many steps: all ranks hold the model already, and attach moves no
  /// values.
  std::optional<std::int64_t> switched_at;
  StrategyOptions options;         ///< the config's
  std::vector<std::string> hosts;  ///< by rank
  std::shared_ptr<Communicator>
      gradient_communicator;  ///< the reducer's; a strategy only allocates from it, while no step is under way
  std::shared_ptr<Communicator>
      program_communicator;                ///< collectives that the compute thread waits for, in program order
  ReducerActor reducer;                    ///< of this rank
  std::shared_ptr<StepProgress> progress;  ///< shared by the reducer and compute within a step
  /// Registers one of the strategy's communicators at the supervisor, which aborts it with the others. `name` is unique
  /// on the rank.
  std::function<void(const std::string& name, std::shared_ptr<Communicator> communicator)> register_communicator;
  /// Waits for the reducer; throws its failure. Compute's thread.
  std::function<BucketsReduced(std::int64_t step)> wait_reduced;
  /// News for the user, the same on all ranks: it comes with the step's report. Compute's thread.
  std::function<void(std::string news)> announce;
  caf::actor_system* system = nullptr;  ///< for the strategy's actors (OwnActor)
  /// Parameters that did not require a gradient when the model was distributed; empty: those that do not now.
  std::shared_ptr<const std::set<const void*>> frozen;
  /// Whether a layout has a place for the parameter's gradient. A newcomer's parameters are as the program made them,
  /// so later freezing does not count here.
  bool trains(const at::Tensor& parameter) const {
    return frozen ? !frozen->contains(parameter.unsafeGetTensorImpl()) : parameter.requires_grad();
  }
  std::chrono::milliseconds timeout{60'000};  ///< for an answer of another actor: longer than any collective's

  /// Splits `from` as Communicator::split, for the strategy alone, and registers what comes of it as `name`, which is
  /// unique on the rank; null with a negative color. Collective over `from`. Dies with the generation.
  std::shared_ptr<Communicator> split(Communicator& from, int color, int key, const std::string& name) const;
  /// One over all ranks, for one thread. Collective.
  std::shared_ptr<Communicator> make_communicator(const std::string& name) const;
};

}  // namespace troupe
