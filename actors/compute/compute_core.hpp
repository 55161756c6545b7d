#pragma once
#include <torch/torch.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/compute/compute_mailbox.hpp"
#include "actors/rank/rank_supervisor.hpp"
#include "actors/rank/reducer.hpp"
#include "actors/step/step_protocol.hpp"
#include "actors/step/training_options.hpp"
#include "actors/strategy/placement.hpp"
#include "actors/strategy/strategy.hpp"
#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/layout/named_state.hpp"
#include "tensor_io/optimizer/loss_scaler.hpp"

namespace troupe {

struct ComputeOptions {
  ProcessId process;
  int world_size = 1;  ///< that the job was asked for
  TrainingOptions training;
  StrategyOptions strategy;
  std::chrono::milliseconds timeout{60'000};  ///< for a message of the rank's other actors
  bool may_recover = false;  ///< the job outlives the loss of a rank, so copies of sharded state are of use
};

/// A rank's services in one generation.
struct ComputeServices {
  RankSupervisorActor supervisor;
  ReducerActor reducer;
  std::shared_ptr<Communicator> gradient_communicator;
  std::shared_ptr<Communicator> program_communicator;
  std::shared_ptr<StepProgress> progress;
  std::shared_ptr<RankStatus> status;
};

/// The state that the parts of Compute share: the rank, what it trains, and its step. Each part keeps the rest to
/// itself. Compute's thread.
struct ComputeCore {
 private:
  // Above `strategy`, which may use them to its end.
  NamedTensors frozen_;  // did not require a gradient when the model was distributed
  struct Place;
  std::vector<Place> places_;  // of the parameters, as the program gave them; until they are on all ranks
  int first_rank_ = -1;        // when it tried last to give the model to a strategy

  void expect_values() const;
  std::vector<std::string> notices_;

 public:
  ComputeCore(caf::actor_system& system, ComputeOptions of_rank);
  ~ComputeCore();
  ComputeCore(const ComputeCore&) = delete;
  ComputeCore& operator=(const ComputeCore&) = delete;

  int rank() const noexcept { return protocol.rank(); }
  const Membership& membership() const noexcept { return protocol.group(); }
  int world_size() const noexcept { return membership().world_size(); }
  std::int64_t step() const noexcept { return protocol.steps_done(); }
  Communicator& program_communicator() const { return *services.program_communicator; }
  c10::Device device() const { return services.program_communicator->device(); }

  /// nullptr: the strategy lacks it, or there is no strategy yet.
  template <class Capability>
  Capability* capability() const {
    return strategy ? strategy->capability<Capability>() : nullptr;
  }
  /// The part of the data that this rank trains on.
  DataShard data_shard() const;
  /// Of a strategy whose ranks take shares of a step's batch on demand; 0: it has none, or there is no strategy yet.
  std::int64_t shares_per_rank() const;

  /// `report` with rank, actor and step filled in if they are missing.
  ErrorReport complete(ErrorReport report) const;
  /// Throws Error(usage) of this rank and step.
  [[noreturn]] void refuse(const char* place, const std::string& cause, const std::string& remedy) const;

  /// Takes the model, and remembers which of its parameters are frozen, and where they lie.
  void take_model(std::shared_ptr<torch::nn::Module> taken);
  /// The strategy that gets the model next. Throws Error(state_lost) if the ranks' own values are to be trained, and a
  /// strategy that was interrupted has cut this rank's.
  void make_strategy();
  /// The model is on all ranks.
  void became_distributed();
  /// Throws Error(usage) if a frozen parameter is trained now: a strategy lays out gradients when it gets the model.
  void refuse_unfrozen() const;
  /// The strategy's context in this generation.
  StrategyContext strategy_context(bool newcomer);
  /// News of the strategy since the last call.
  std::vector<std::string> take_notices() { return std::exchange(notices_, {}); }

  const ComputeOptions options;
  StepProtocol protocol;
  ComputeMailbox mailbox;
  ComputeServices services;
  std::shared_ptr<torch::nn::Module> model;
  std::uint64_t code_hash = 0;  ///< of the model's ModuleCode
  std::unique_ptr<Strategy> strategy;
  LossScaler loss_scaler;  ///< changes with each step's decision, the same on all ranks
  /// The program's own change of the parameters. It is called once the step of that number has updated them, before a
  /// failure can separate ranks that have done it from others.
  std::function<void(std::int64_t step)> on_update;
};

}  // namespace troupe
