#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/rank/comm_hook.hpp"
#include "actors/rank/reducer.hpp"
#include "actors/rank/strategy_options.hpp"
#include "actors/strategy/capabilities.hpp"
#include "actors/strategy/strategy_context.hpp"
#include "tensor_io/layout/named_state.hpp"
#include "tensor_io/optimizer/optimizer.hpp"

namespace troupe {

class ReplicatedState;

/// A summary of one rank's gradients in this step, before the vote.
struct GradientSummary {
  std::uint64_t layout_hash = 0;           ///< of names, shapes, dtypes, requires_grad and buckets
  std::int32_t not_finite_parameter = -1;  ///< the first that has NaN or infinity in it; -1: none
  bool made_by_hook = false;               ///< NaN or infinity came only with the communication hook's reduction
  bool order_changed = false;              ///< gradients came in another order than the plan's, twice in a row
  std::vector<bool> used;                  ///< by parameter
  BucketsReduced reduced;                  ///< the reducer's answer
  /// On a device, if the host does not know yet: (n, 2) f64 there, sums of squares of the reduced gradients and numbers
  /// of elements that are not finite, each over a part of them. Compute reads it with the losses, in the step's one
  /// wait for the device.
  at::Tensor device_checks;
  double message_us = 0;  ///< sending buckets, the last one's way to the reducer, the answer's way back

  /// Waits for the reducer: `reduced`, and the times of its messages.
  void await(const StrategyContext& context, std::int64_t step);
};

/// Decides how parameters are laid out over ranks, and which tensors move when.
///
/// If every rank holds the whole model, derive from ReplicatedStrategy
/// (strategies/replicated/replicated_strategy.hpp) instead: only two or three calls are left then. This is the whole
/// contract, for a strategy that shards parameters.
///
/// - Thread: all calls come from the compute thread, one at a time.
/// - A step: begin_step; for each micro-batch forward, begin_backward, autograd, end_backward; reduce_gradients; the
///   vote; end_step; the optimizer; after_update; set_rollback_point. A skipped step leaves out the optimizer only. Up
///   to the vote only the strategy's own staging memory may change in a way that roll_back does not undo. Between the
///   vote and after_update nothing may fail: no collectives.
/// - Messages: a strategy sends the rank's reducer InstallPlan and BucketReady, and awaits its BucketsReduced. To other
///   ranks it sends tensors over communicators, never CAF messages.
/// - Actors: it may spawn actors on its rank (OwnActor). Each has a communicator that no other thread uses
///   (StrategyContext::make_communicator), so that every communicator has one thread and one order of calls.
/// - Waits: every one has a deadline. Communicators have theirs and throw; a strategy lets the exception through.
///   Error(peer_lost), (timeout) and (aborted) begin a new generation: `rejoin` brings new communicators, and the work
///   under way with the old ones is forgotten.
/// - Errors: Error(usage) for a setting that makes no sense, from the constructor; Error(mismatch) if ranks differ.
class Strategy {
 public:
  Strategy();
  virtual ~Strategy();
  /// For logs and errors.
  virtual std::string name() const = 0;
  /// One line for the log.
  virtual std::string describe() const { return name(); }

  /// Its abilities beyond these calls (capabilities.hpp): the interfaces that its class derives from. A strategy
  /// overrides this if it has one only with some options, or is around another strategy. Not in the constructor.
  virtual StrategyCapabilities capabilities() { return own_capabilities(); }
  /// One of them; nullptr: it lacks this one.
  template <class Capability>
  Capability* capability() {
    return capabilities().get<Capability>();
  }
  /// Its own, or a ReplicatedState.
  SavedState& saved_state();
  /// Its own, or one that only runs forward.
  Evaluation& evaluation();

  /// Takes over the model: ranks agree on its layout, rank 0's parameters and buffers go to all and are verified. A
  /// model of deferred_init has no values yet: materialize gives it all of them.
  virtual void attach(std::shared_ptr<torch::nn::Module> model) = 0;
  /// A new generation, between steps: other communicators, perhaps another rank and world size. Collective, with the
  /// newcomers' attach. The changes of the interrupted step were rolled back or committed before.
  virtual void rejoin(StrategyContext context) = 0;
  /// The tensors of the model that a newcomer needs, by name: the live ones, equal on all ranks between steps. Unless
  /// !replicas_equal: then each rank's own.
  virtual NamedTensors replicated_tensors() = 0;
  /// False: ranks that hold the model train replicas that differ between steps. Then replicas are not compared
  /// (verify_every), each rank clips by its own gradient norm, and a newcomer becomes a copy of the first rank that has
  /// the state, optimizer included.
  virtual bool replicas_equal() const { return true; }
  /// The strategy's own tensors, the same on all ranks between steps. Newcomers get them, and checkpoints have them
  /// with `strategy.` before their names.
  virtual NamedTensors strategy_tensors() { return {}; }
  /// Parameter names in layout order, as in the votes.
  virtual const std::vector<std::string>& parameter_names() const = 0;

  /// Between steps: the state to which roll_back goes back.
  virtual void set_rollback_point() = 0;
  /// A step begins; it may have begun before and been given up.
  virtual void begin_step(std::int64_t step) = 0;
  /// `synchronise`: the last micro-batch of the step, whose gradients complete the buckets. `weight` 0: this rank only
  /// joins in.
  virtual void begin_backward(bool synchronise, double weight) = 0;
  /// Backward of the micro-batch is over.
  virtual void end_backward() = 0;
  /// Waits until the gradients of the step are the average over all ranks.
  virtual GradientSummary reduce_gradients() = 0;
  /// After device_checks reported gradients that are not finite: the first parameter of these, or -1.
  virtual std::int32_t find_not_finite() { return -1; }
  /// Global L2 norm of the reduced gradients: the same bits on every rank.
  virtual double gradient_norm() = 0;
  /// Multiplies the reduced gradients.
  virtual void scale_gradients(double factor) = 0;
  /// After the vote, local. `used`: on any rank; other parameters keep an undefined gradient. `rebuild`: rank 0
  /// requested buckets in the new order. `commit`: the changes of buffers in forward stay; else buffers go back to
  /// their values at the step's start.
  virtual void end_step(const std::vector<bool>& used, bool rebuild, bool commit) = 0;
  /// The step was given up before its vote: buffers go back, gradients are dropped. Local.
  virtual void roll_back() = 0;
  /// After the optimizer, collective: the step's outcome must not depend on it.
  virtual void after_update() = 0;

  /// Before the first use of an optimizer's state: a strategy that shards it replaces the model's parameters by this
  /// rank's slices. Does nothing the second time.
  virtual void shard_optimizer(Optimizer& /*optimizer*/) {}

 protected:
  const StrategyCapabilities& own_capabilities();

 private:
  std::optional<StrategyCapabilities> own_;  // read in each step, and the class stays
  std::unique_ptr<ReplicatedState> replicated_state_;
};

/// Makes a rank's strategy.
using StrategyFactory = std::function<std::unique_ptr<Strategy>(StrategyContext)>;

/// Registration by name; add your own before the job starts. Throws Error(usage) naming the nearest known
/// one.
void register_strategy(const std::string& name, const std::string& description, StrategyFactory factory);
/// The strategy that the options name. Throws Error(usage) for an unknown name.
std::unique_ptr<Strategy> make_strategy(StrategyContext context);
std::map<std::string, std::string> strategies();  ///< name -> description

/// Registers the maker of the strategy that changes strategies in a running job (option: switch_at).
void register_strategy_switch(StrategyFactory factory);

/// Adds a communication hook under a name for `--comm_hook`, before the job starts.
void register_comm_hook(const std::string& name, CommHookFactory factory);
/// The communication hook that the options name. Throws Error(usage) for an unknown name.
std::shared_ptr<CommHook> make_comm_hook(const StrategyOptions& options);

}  // namespace troupe
