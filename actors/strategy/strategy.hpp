#pragma once
#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/rank/comm_hook.hpp"
#include "actors/rank/reducer.hpp"
#include "actors/rank/strategy_options.hpp"
#include "tensor_io/checkpoint/state_reader.hpp"
#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/device/device_graph.hpp"
#include "tensor_io/device/timed_mark.hpp"
#include "tensor_io/layout/named_state.hpp"
#include "tensor_io/memory/memory_shortage.hpp"
#include "tensor_io/optimizer/optimizer.hpp"
#include "tensor_io/optimizer/step_decision_on_device.hpp"

namespace troupe {

/// What a strategy may use, in one generation. Everything outlives the strategy.
struct StrategyContext {
  int rank = 0;           ///< in this generation
  int world_size = 1;     ///< in this generation
  bool newcomer = false;  ///< the others hold the state: attach makes the layout and moves no values
  /// A running job changes its strategy after so many steps: all ranks hold the model already, and attach moves no
  /// values.
  std::optional<std::int64_t> switched_at;
  StrategyOptions options;         ///< the config's
  std::vector<std::string> hosts;  ///< by rank
  std::shared_ptr<Communicator>
      bucket_lane;  ///< the reducer's; a strategy only allocates from it, while no step is under way
  std::shared_ptr<Communicator> program_lane;  ///< collectives that the compute thread waits for, in program order
  ReducerActor reducer;                        ///< of this rank
  std::shared_ptr<StepProgress> progress;      ///< what the reducer and compute tell each other within a step
  /// Makes a lane of the strategy's own known to the supervisor, which aborts it with the others. `name` is unique on
  /// the rank.
  std::function<void(const std::string& name, std::shared_ptr<Communicator> lane)> register_lane;
  /// Waits for the reducer; throws what failed. Compute's thread.
  std::function<BucketsReduced(std::int64_t step)> wait_reduced;
  caf::actor_system* system = nullptr;  ///< for actors of the strategy's own (OwnActor)
  /// Parameters that did not require a gradient when the model was distributed; empty: those that do not now.
  std::shared_ptr<const std::set<const void*>> frozen;
  /// Whether a layout has a place for the parameter's gradient. A newcomer's parameters are as the program made them,
  /// so this does not go by what was frozen since.
  bool trains(const at::Tensor& parameter) const {
    return frozen ? !frozen->contains(parameter.unsafeGetTensorImpl()) : parameter.requires_grad();
  }
  std::chrono::milliseconds timeout{60'000};  ///< for an answer of another actor: longer than any collective's

  /// A lane of the strategy's own, over all ranks, for one thread. Collective; `name` is unique on the rank. Dies with
  /// the generation.
  std::shared_ptr<Communicator> make_lane(const std::string& name) const;
};

/// What one rank's gradients were in this step, before the vote.
struct GradientSummary {
  std::uint64_t layout_hash = 0;           ///< of names, shapes, dtypes, requires_grad and buckets
  std::int32_t not_finite_parameter = -1;  ///< the first that has NaN or infinity in it; -1: none
  bool made_by_hook = false;               ///< only once the communication hook had reduced it
  bool order_changed = false;              ///< gradients came in another order than the plan's, twice running
  std::vector<bool> used;                  ///< by parameter
  BucketsReduced reduced;                  ///< what the reducer said
  /// On a device, where the host does not know yet: (n, 2) f64 there, sums of squares of the reduced gradients and
  /// numbers of elements that are not finite, each over a part of them. Compute reads it with the losses, in the step's
  /// one wait for the device.
  at::Tensor device_checks;
  double message_us = 0;  ///< sending buckets, the last one's way to the reducer, the answer's way back

  /// Waits for the reducer: `reduced`, and the way of its messages.
  void await(const StrategyContext& context, std::int64_t step);
};

/// A step's micro-batches, for a strategy that runs them in an order of its own.
class MicroBatches {
 public:
  virtual ~MicroBatches() = default;
  virtual int count() const = 0;  ///< micro-batches of the step
  /// The program's forward and loss of one micro-batch. Returns what backward starts from, scaled; counts the loss. May
  /// be called for the same micro-batch again: random numbers are the same then. Throws what forward throws.
  virtual at::Tensor forward(int micro_batch) = 0;
  /// As forward, and counts nothing.
  virtual void try_forward(int micro_batch) = 0;
};

/// Of a step's batch, where ranks take its parts by demand: the part that a rank trains on next.
struct Share {
  std::int64_t micro_batch = 0;  ///< of shares_per_rank
  int index = 0;                 ///< 0 .. world_size - 1
};

/// Which part of the data a rank trains on.
struct DataShard {
  int index = 0, count = 1;
};

/// Ranks that hold the same part of the state: who heals a newcomer among them.
struct ReplicaGroup {
  std::shared_ptr<Communicator> lane;  ///< over the members
  std::vector<int> members;            ///< ranks, by their rank in the lane
};

/// Decides how parameters are laid out over ranks and which tensors move when.
///
/// Where every rank holds the whole model, derive from Replica (strategies/replicated/replicated_strategy.hpp) instead:
/// two or three calls are left then. What follows is the whole contract, which a strategy that shards parameters needs.
///
/// - Thread: all calls come from the compute thread, one at a time.
/// - A step: begin_step; for each micro-batch forward, begin_backward, autograd, end_backward; reduce_gradients; the
///   vote; end_step; the optimizer; after_update; set_rollback_point. A skipped step leaves out the optimizer only. Up
///   to the vote nothing may change that roll_back does not put back, except in the strategy's own staging memory.
///   Between the vote and after_update nothing may fail: no collectives.
/// - Messages: a strategy sends the rank's reducer InstallPlan and BucketReady, and awaits its BucketsReduced. To other
/// ranks it sends
///   tensors over lanes, never CAF messages.
/// - Actors: it may spawn actors of its own on its rank (OwnActor), each with a lane of its own
/// (StrategyContext::make_lane), so that every
///   lane has one thread and one order of calls.
/// - Waits: every one has a deadline. Lanes bring theirs and throw; a strategy lets it through. Error(peer_lost),
/// (timeout) and (aborted)
///   begin a new generation, in which `rejoin` brings new lanes; what was under way with the old ones is to be
///   forgotten.
/// - Errors: Error(usage) for a setting that makes no sense, from the constructor; Error(mismatch) where ranks differ.
class Strategy {
 public:
  virtual ~Strategy() = default;
  virtual std::string name() const = 0;

  /// Whether attach gives a model of deferred_init its values itself, part by part. For all others that is done before
  /// it.
  virtual bool takes_deferred() const { return false; }
  /// Takes over the model: ranks agree on its layout, rank 0's parameters and buffers go to all and are verified.
  virtual void attach(std::shared_ptr<torch::nn::Module> model) = 0;
  /// A new generation, between steps: other lanes, perhaps another rank and world size. Collective, with the newcomers'
  /// attach. What the interrupted step changed was rolled back or committed before.
  virtual void rejoin(StrategyContext context) = 0;
  /// What a newcomer needs of the model, by name: the live tensors, equal on all ranks between steps.
  /// Unless !replicas_equal: then each rank's own.
  virtual NamedTensors replicated_tensors() = 0;
  /// False: ranks that hold the model train replicas that differ between steps. Then replicas are not compared
  /// (verify_every), the gradient is clipped by each rank's own norm, and a newcomer becomes a copy of the first rank
  /// that has the state, its optimizer's too.
  virtual bool replicas_equal() const { return true; }
  /// What the strategy itself keeps, the same on all ranks between steps. Newcomers get it, and checkpoints have it
  /// with `strategy.` before its name.
  virtual NamedTensors strategy_tensors() { return {}; }
  /// Parameter names in layout order, as in the votes.
  virtual const std::vector<std::string>& parameter_names() const = 0;

  /// Between steps: what roll_back goes back to.
  virtual void set_rollback_point() = 0;
  /// Forward of a step's first micro-batch comes next, as far as the loop says so: before begin_step, perhaps more than
  /// once, perhaps never.
  virtual void begin_forward(std::int64_t /*step*/) {}
  virtual void begin_step(std::int64_t step) = 0;
  /// `synchronise`: the last micro-batch of the step, whose gradients complete the buckets. `weight` 0: this rank only
  /// joins in.
  virtual void begin_backward(bool synchronise, double weight) = 0;
  virtual void end_backward() = 0;
  /// Waits until the gradients of the step are the average over all ranks.
  virtual GradientSummary reduce_gradients() = 0;
  /// After device_checks told of gradients that are not finite: the first parameter of these, or -1.
  virtual std::int32_t find_not_finite() { return -1; }
  /// Global L2 norm of the reduced gradients: the same bits on every rank.
  virtual double gradient_norm() = 0;
  virtual void scale_gradients(double factor) = 0;
  /// After the vote, local. `used` on any rank: others keep an undefined gradient. `rebuild`: rank 0 asked for buckets
  /// in the new order. `commit`: the buffers that forward changed stay; otherwise they go back to what they were at the
  /// step's start.
  virtual void end_step(const std::vector<bool>& used, bool rebuild, bool commit) = 0;
  /// Backward of the step's last micro-batch begins, and the optimizer would be called with this rate: true where the
  /// strategy makes that update itself, of gradients as they are reduced. Nobody sees it before end_step commits, and
  /// the optimizer is not called.
  virtual bool begin_update(double /*lr*/) { return false; }
  /// After end_step committed a step whose update was not begun: applies the gradients that the parameters have. Local.
  virtual void update(Optimizer& optimizer, double lr) { optimizer.step(lr); }
  /// Why the strategy can't leave to the device whether a step is applied (end_step_on_device); empty: it can.
  virtual std::string late_vote_obstacle() const { return "strategy " + name() + " waits for the vote"; }
  /// In the place of scale_gradients and end_step, where the device decides (vote late). Waits for nothing.
  virtual void end_step_on_device(const std::vector<bool>& /*used*/, bool /*rebuild*/,
                                  const DeviceDecision& /*decision*/) {}
  /// Why a micro-batch's forward and backward can't be a graph of the device (cuda_graphs); empty: they can.
  virtual std::string capture_obstacle() const {
    return "strategy " + name() + " does more in forward and backward than launch kernels";
  }
  /// A version number: captured graphs are valid only while it stays the same. It changes where gradients lie elsewhere
  /// or are reduced in another order.
  virtual std::uint64_t captured_layout_version() const { return 0; }
  /// Which parameters had a gradient in this step so far: a graph stores what comes for the others, and adds to those.
  virtual std::uint64_t gradients_so_far() const { return 0; }
  /// What is the host's to do for a backward that was written into a graph, each time the graph is replayed.
  class HostPart {
   public:
    virtual ~HostPart() = default;
  };
  /// After begin_backward: what follows of backward, to the end of end_backward, is written into `graph` and not run.
  /// Nothing of it is to be handed on. end_capture, also after an exception, says what a replay's `on_replay` is to do;
  /// `on_replay` comes in the place of autograd and end_backward.
  virtual void begin_capture(DeviceGraph& /*graph*/) {}
  virtual std::shared_ptr<const HostPart> end_capture() { return nullptr; }
  virtual void on_replay(const HostPart& /*part*/) {}
  /// The step was given up before its vote: buffers go back, gradients are dropped. Local.
  virtual void roll_back() = 0;
  /// After the optimizer, collective: nothing that the step's outcome depends on.
  virtual void after_update() = 0;
  /// After after_update, collective: from the next step on begin_update may be about this optimizer, and every step has
  /// the same one.
  virtual void prepare_updates(Optimizer&) {}

  /// It calls forward and backward itself, of all micro-batches of a step at once: run_micro_batches comes in the place
  /// of begin_backward, autograd and end_backward. Programs with a loop of their own can't use it then.
  virtual bool orders_micro_batches() const { return false; }
  virtual void run_micro_batches(MicroBatches&) {}
  /// Above 0: ranks take a step's batch by demand, cut into so many shares for each rank, and need not do equally many
  /// of them. Then begin_backward, autograd, end_backward and end_share come for each share, and the rest of a step
  /// (reduce_gradients, the vote and so on) after this rank's last one. Every rank does one at least: its first is {0,
  /// rank}.
  virtual std::int64_t shares_per_rank() const { return 0; }
  virtual Share next_share() const { return {}; }
  /// A share's backward is over. May wait for other ranks, and change parameters as the optimizer does: `update`
  /// applies the gradients that the parameters have now. roll_back, and end_step without commit, undo that. True: this
  /// rank has another share of the step.
  virtual bool end_share(const std::function<void()>& /*update*/) { return false; }
  /// So long forward and backward have waited for other ranks on lanes of the strategy's own; grows, in a generation.
  virtual std::chrono::nanoseconds time_waited() const { return std::chrono::nanoseconds(0); }
  /// On a device, in the place of time_waited: when compute's stream waited so since the last call.
  virtual std::vector<TimedInterval> take_device_waits() { return {}; }
  /// Where not all ranks train on samples of their own; nothing: rank of world_size.
  virtual std::optional<DataShard> data_shard() const { return std::nullopt; }
  /// False: another rank counts the same samples and their loss.
  virtual bool counts_samples() const { return true; }
  /// Between begin_evaluation and end_evaluation: runs one forward. False: the result is another rank's, `forward` did
  /// not come to its end.
  virtual bool evaluate(const std::function<void()>& forward) {
    forward();
    return true;
  }
  /// Where not all ranks hold the same; nothing: all are alike, or a lost rank's part is got back in another way.
  virtual std::optional<ReplicaGroup> replica_group() const { return std::nullopt; }

  /// Before the job goes over to another strategy: what is under way is brought to its end. Collective, between steps.
  virtual void finish_pending() {}
  /// News for the user since the last call, the same on all ranks.
  virtual std::vector<std::string> take_notices() { return {}; }
  /// For the checkpoint: facts that a bit-equal resume needs (the bucket plan), and their return. load_state comes
  /// after attach. A resume adds `step`, the number of steps done.
  virtual std::map<std::string, std::string> state() { return {}; }
  virtual void load_state(const std::map<std::string, std::string>&) {}
  /// Forward without backward follows, perhaps not equally often on all ranks, until the end. Both are collective.
  virtual void begin_evaluation() {}
  virtual void end_evaluation() {}

  /// Before an optimizer's state is touched: a strategy that shards it puts this rank's slices in the place of the
  /// model's parameters. Does nothing the second time.
  virtual void shard_optimizer(Optimizer&) {}
  /// A rank alone does not have the job's state.
  virtual bool shards_state() const { return false; }
  /// Collective. What this rank writes of the job's state: `model.<parameter or buffer>`,
  /// `optimizer.<parameter>.<moment>`. The parts of all ranks are disjoint and complete. They may be views of live
  /// tensors, which nobody changes before they are copied or written. Default: a share of what all ranks have alike.
  virtual std::vector<TensorPart> state_parts(Optimizer& optimizer, int rank, int world_size);
  /// Reads what this rank needs of a saved state. Not collective, so that one rank may find what is wrong; once all
  /// have read, publish_state follows on all. Throws Error(mismatch) for a state of another model, and what the reader
  /// throws; some of it may have been read then. Default: everything.
  virtual void read_state(const StateReader& state, Optimizer& optimizer);
  /// Collective: what was read reaches where forward sees it.
  virtual void publish_state() {}
  /// A rank that dies takes a part of the state with it: copies are taken between steps, of which `rejoin`, and a
  /// newcomer's `attach`, make the whole again.
  virtual bool keeps_snapshots() const { return false; }
  /// Collective, between steps. `note` comes back with the state.
  virtual void take_snapshot(Optimizer&, std::uint64_t /*generation*/, std::int64_t /*step*/,
                             const std::string& /*note*/) {}
  struct Restored {
    std::int64_t step = 0;  ///< the one that is run next
    std::string note;       ///< what take_snapshot was given
  };
  /// What rejoin or attach went back to; nothing the second time.
  virtual std::optional<Restored> take_restored() { return std::nullopt; }
  /// What it and the model hold on this rank's device, for whoever runs out of memory there: after forward, backward or
  /// the optimizer has thrown.
  virtual std::vector<HeldMemory> held_memory() const { return {}; }
  /// One line for the log.
  virtual std::string describe() const { return name(); }
};

/// What every rank has (where replicas differ: this rank's), under the names of checkpoints; live tensors.
NamedTensors replicated_state(Strategy& strategy, Optimizer& optimizer);

using StrategyFactory = std::function<std::unique_ptr<Strategy>(StrategyContext)>;

/// Registration by name; a user's own may be added before the job starts. Throws Error(usage) naming the nearest known
/// one.
void register_strategy(const std::string& name, const std::string& description, StrategyFactory factory);
std::unique_ptr<Strategy> make_strategy(StrategyContext context);
std::map<std::string, std::string> strategies();  ///< name -> description

/// What makes the strategy of a job that changes its strategy while it runs (option: switch_at).
void register_strategy_switch(StrategyFactory factory);

void register_comm_hook(const std::string& name, CommHookFactory factory);
std::shared_ptr<CommHook> make_comm_hook(const StrategyOptions& options);

}  // namespace troupe
