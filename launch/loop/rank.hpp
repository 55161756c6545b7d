#pragma once
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include <cereal/archives/portable_binary.hpp>
#include <cereal/types/map.hpp>
#include <cereal/types/string.hpp>
#include <cereal/types/vector.hpp>

#include "actors/rank/data_cursor.hpp"
#include "actors/step/loss.hpp"
#include "actors/step/step_report.hpp"
#include "launch/config/config.hpp"
#include "launch/loop/callbacks.hpp"
#include "launch/loop/own_state_access.hpp"
#include "launch/loop/step_profile.hpp"
#include "launch/model/parameter_rules.hpp"
#include "tensor_io/base/random_seed.hpp"
#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/data/dataset.hpp"
#include "tensor_io/layers/autocast.hpp"
#include "tensor_io/layers/deferred_init.hpp"
#include "tensor_io/optimizer/optimizer.hpp"
#include "tensor_io/optimizer/schedule.hpp"

namespace caf {
class actor_system;
}

namespace troupe {

class BatchStream;
class LoopWatch;
struct RankParts;
class RankSystem;
struct RankSystemOptions;
template <class Range>
class UnevenBatches;

/// The number of samples in a batch of your own, for Rank::uneven. Write an overload beside your batch type; it is
/// found by argument.
inline std::int64_t samples_of(const Batch& batch) { return batch.numel(); }
inline std::int64_t samples_of(const at::Tensor& batch) { return batch.size(0); }
template <class Input, class Target>
std::int64_t samples_of(const std::pair<Input, Target>& batch) {
  return samples_of(batch.first);
}

/// The tensors of a batch of your own, by name, for `troupe debug`. May be overloaded as samples_of; without an
/// overload such batches are ignored.
inline NamedTensors fields_of(const Batch& batch) { return batch.fields(); }
inline NamedTensors fields_of(const at::Tensor& batch) { return {{"input", batch}}; }
inline NamedTensors fields_of(const std::pair<at::Tensor, at::Tensor>& batch) {
  return {{"input", batch.first}, {"target", batch.second}};
}

/// One rank of a job, for a program with its own training loop. For the thread that made it.
///
///     troupe::main(argc, argv, [](troupe::Rank& rank) {
///       auto model = rank.distribute([] { return MyModel(…); });
///       auto optimizer = rank.make_optimizer(*model);
///       rank.keep_checkpoints(*optimizer);
///       for (const auto& batch : rank.loader(dataset)) {
///         rank.backward(loss(model, batch));
///         rank.step(*optimizer);
///       }
///     });
class Rank {
 public:
  /// Made by troupe::main and troupe::run.
  Rank(caf::actor_system& system, Config config, RankSystemOptions options);
  ~Rank();

  /// Its number, from 0. It and `world_size` change when ranks are lost, replaced or added: between two steps, inside
  /// `step`.
  int rank() const noexcept;
  int world_size() const noexcept;                       ///< ranks that train now
  bool is_main() const noexcept { return rank() == 0; }  ///< rank 0, which prints and saves for all
  /// The device on which this rank trains (config: device). `distribute` moves the model there, the loader its batches;
  /// the program moves all else that forward needs.
  at::Device device() const noexcept;
  const Config& config() const noexcept { return config_; }  ///< the settings; `sources` has their places

  /// Hands the model to the config's strategy; collective. Returns its argument (a module holder or a shared_ptr), for
  /// convenience.
  ///
  /// Or takes a function that makes the model: `rank.distribute([&] { return MyModel(…); })`. Then simulated ranks,
  /// which share LibTorch's generator, build one after the other, each from the config's seed, as processes do anyway.
  /// With deferred_init such a model is built without memory; a model that is built already, with all of its memory, is
  /// refused with Error(usage).
  template <class Model>
  auto distribute(Model model) {
    if constexpr (
        requires { model.ptr(); } || requires { model->parameters(); }) {
      refuse_built(*module_of(model));
      distribute_module(module_of(model));
      return model;
    } else {
      auto made = build(model);
      distribute_module(module_of(made));
      return made;
    }
  }

  /// The optimizer that the config names, over all parameters that require a gradient, in groups by `rules` and the
  /// config's no_decay; see parameter_groups, which throws Error(usage).
  std::unique_ptr<Optimizer> make_optimizer(const torch::nn::Module& model, const ParameterRules& rules = {}) const;

  /// The learning rate's schedule by code, instead of the config's: `factor(step, total_steps)` multiplies the config's
  /// lr, or the rates of a torch::optim optimizer. It must be a pure function of the two. `total_steps` is known once
  /// there is a loader, or by max_steps; else it is 0.
  ///
  ///     rank.schedule([](std::int64_t step, std::int64_t total) { return 1 - double(step) / total; });
  ///
  /// Once, before the loop. Throws Error(usage) if the config has a schedule, too. A step whose factor is negative or
  /// not finite ends with Error(user).
  void schedule(LrSchedule factor);

  /// This rank's batches of the data set: all epochs of the config, from the run's present step. Ends early after a
  /// stop request. Throws Error(usage) while another loop over rank.loader or rank.uneven is under way.
  BatchStream loader(std::shared_ptr<const Dataset> dataset);

  /// For a program's own data, in unequal amounts on the ranks: batches of unequal size, and some ranks with
  /// fewer.
  ///
  ///     for (const auto& batch : rank.uneven(my_batches)) {
  ///       rank.backward(loss(model, batch));
  ///       rank.step(*optimizer);
  ///     }
  ///
  /// A rank that ran out gets its last batch again until all have ended. That counts nothing (not in gradients, loss,
  /// accuracy, nor in the statistics of a BatchNorm), but every collective of the step finds the rank there. Gradients
  /// are those of one rank with all samples of the step. `batches` is any range whose elements have a samples_of. It is
  /// copied or moved in, or referred to if it has a name, and must hold at least one batch if any rank has one. Ends
  /// early after a stop request.
  /// A step that is interrupted by the loss of a rank is run again with the same batches. A replacement skips its
  /// batches of the rounds that the others have done; a rank that is not replaced takes its batches along. With
  /// keep_checkpoints, a resumed run goes on with the batch at which it stopped. Throws Error(usage) before distribute
  /// and with grad_accum_steps above 1. Every round is collective.
  template <class Range>
  UnevenBatches<Range> uneven(Range&& batches);

  /// Autocast by the config (use_amp, amp_dtype), while the result lives; nothing without use_amp. For a program's own
  /// loop, around forward and loss: with use_amp and without it backward throws Error(usage).
  [[nodiscard]] AutocastGuard autocast();
  /// Backward of one micro-batch's loss: a mean, or Loss::sum. `correct`: samples that were right, for the accuracy in
  /// reports. A batch that is neither the loader's nor of `uneven` counts as one sample; with `correct` it is refused
  /// with Error(usage), since its number of samples is not known. Throws the error that broke the job.
  void backward(const Loss& loss);
  void backward(const at::Tensor& mean, const CorrectSamples& correct = 0.0) { backward(Loss(mean, correct)); }
  /// Of a batch that is not the loader's: its samples, and Compute::backward's weight.
  void backward(const Loss& loss, double samples, double weight);
  /// Whether run_micro_batches must be called instead of backward: by a strategy that orders a step's forwards and
  /// backwards itself (pipeline), and by cuda_graphs.
  bool orders_micro_batches() const;
  /// Forward and backward of all `batches` of a step, in the strategy's order; with any strategy. `forward` is called
  /// for each of them, perhaps several times, and may exit by StageEnded, Troupe's own exception: let it pass. With
  /// cuda_graphs, on a device, it is called until it is captured, and then no more: its batch has only its fields and
  /// counted, and it only launches kernels. Throws Error(usage) if there are not grad_accum_steps of them, and the
  /// error that broke the job. step comes next.
  void run_micro_batches(const std::vector<std::shared_ptr<const Batch>>& batches,
                         const std::function<Loss(const Batch&)>& forward);
  /// Reduce, vote, apply at the schedule's rate. On all ranks or on none, see `committed`. If a rank was lost, this
  /// waits until the others go on without it or with its replacement. With `repeat` the step's batches come again from
  /// the loader. Throws Error(usage) for another optimizer than keep_checkpoints was given, and for optimizers that
  /// take turns: a rank that replaces another, and a checkpoint, get the state of one.
  StepReport step(Optimizer& optimizer);
  StepReport step(torch::optim::Optimizer& optimizer);
  /// The rate of the next step, by the config's lr and the schedule. A torch::optim optimizer has its own rates, which
  /// the schedule multiplies; they are not in it. Throws Error(usage) for a schedule that needs a length if there is
  /// none: without rank.loader and max_steps.
  double learning_rate() const;
  /// The rate for Compute::step: learning_rate, or the schedule's factor for an optimizer with its own rates.
  double rate_for(const Optimizer& optimizer) const { return rate_for(optimizer, steps_done()); }
  /// The same of step `step`.
  double rate_for(const Optimizer& optimizer, std::int64_t step) const;
  /// Checkpoints, by the config's settings. It goes on from `resume` if that is set, and the next loader begins at its
  /// place. It saves every `save_every` steps, at the loader's end and after a stop request. Collective; once, after
  /// distribute and before the loader. `optimizer` must outlive the loop. Rank 0 names the checkpoints that were read
  /// and written on standard error, or on Troupe's console (show_progress).
  ///
  /// A loop that is left before the loader ends (break) saves nothing more. Throws the errors of resuming.
  void keep_checkpoints(Optimizer& optimizer);
  void keep_checkpoints(torch::optim::Optimizer& optimizer);
  /// Held-out data, by the config's settings: evaluated at the end of every `validate_every`-th epoch, and once more if
  /// the run ends within one, unless it was stopped. Every sample counts once, with any number of ranks. Loss and
  /// accuracy go to the run's records. The checkpoint of the best accuracy, or of the lowest loss if the program counts
  /// no correct samples, is marked `best`. A loop over uneven batches has no epochs and is evaluated at its end. `loss`
  /// is called as in the loop, but in eval mode and without gradients. Once, after distribute and before the loader;
  /// the objects of `loss` must outlive the loop. The loop must go through rank.loader or rank.uneven: in another
  /// nothing is evaluated. Throws Error(usage).
  void validate_on(std::shared_ptr<const Dataset> held_out, std::function<Loss(const Batch&)> loss);
  /// A metric of the program, in all records beside the loss. Any rank may log any name in any step, also from within
  /// the loss function, of training and of validation. A mean is over micro-batches and ranks, weighted as their losses
  /// are (by samples, or by the elements of Loss::sum), or by `weight`. A value that is logged between two
  /// micro-batches weighs 1, and counts with the next step. In records it is reduced over the steps of the interval.
  /// Values of a step that is skipped or run again do not count. A tensor has one element. Throws Error(usage) for an
  /// invalid name, one that Troupe reports itself, or one that was reduced in another way.
  void log(const std::string& name, double value, Reduce reduce = Reduce::mean, std::optional<double> weight = {});
  void log(const std::string& name, const at::Tensor& value, Reduce reduce = Reduce::mean,
           std::optional<double> weight = {});
  /// A state of the program, which is the same on all ranks. It is saved with checkpoints and comes back with them, at
  /// any number of ranks. A newcomer gets it from the others, and if all ranks go back to a snapshot it goes back, too.
  /// A tensor, a vector, map or NamedTensors of tensors, a module or its holder, or any type that cereal serialises.
  /// Change it after `step` or in callbacks, on all ranks alike. It must outlive the loop. After distribute, before
  /// keep_checkpoints and the loader. Throws Error(usage) for a name that is taken.
  template <class T>
  void state(const std::string& name, T& value) {
    add_state(name, access_to(value));
  }
  /// Functions that the loop calls at its places. In a program's own loop, too: through the loader or uneven batches.
  /// Before the loop; they replace earlier ones.
  void set_callbacks(Callbacks callbacks);
  /// The whole model's parameters and buffers by their names on `root`, in new memory; nothing elsewhere. With any
  /// strategy: of a sharded one the parts are sent there. Collective, between steps.
  NamedTensors state_dict(Optimizer& optimizer, int root = 0);
  NamedTensors state_dict(torch::optim::Optimizer& optimizer, int root = 0);

  /// Runs `work`, collectives outside of a step, again whenever a lost rank interrupts it. All ranks must call it, a
  /// replacement too: work after every N steps belongs into between_steps.
  template <class Work>
  auto retry(Work&& work) {
    for (;;) {
      try {
        return work();
      } catch (const Error& error) {
        recover(error);
      }
    }
  }
  /// The program's work with all ranks between two steps (adding up, evaluating, saving). The loader calls it after
  /// each step, before it hands out the next batch, and after the last one. If a lost rank interrupts it, all ranks do
  /// it again, the replacement too; if it was done before the loss, no rank does. It must not count on having run on
  /// this process after every step. Replaces the one before.
  void between_steps(std::function<void(std::int64_t steps_done)> work);
  /// Optimizer steps done in the run.
  std::int64_t steps_done() const noexcept;
  /// After `error` in collectives outside of a step or in forward: joins the next generation, or throws an error that
  /// is not recoverable. The step's batches come again.
  void recover(const Error& error);
  bool stop_requested() const { return stop_signal() != 0; }  ///< a rank was asked to stop: the loader ends
  int stop_signal() const;                                    ///< the same on all ranks, after a step

  /// Collectives for the program's own use, in the same order on every rank.
  Communicator& communicator();
  /// Collective. A group of ranks: those of one `color`, ordered by (key, rank); a negative color: nullptr. As
  /// Communicator::split, but watched: the loss of a rank ends its waits at once. Of this generation: make it where it
  /// is used, and do not keep it over a step.
  std::shared_ptr<Communicator> split(int color, int key);
  /// In place, over all ranks; see Communicator::all_reduce.
  void all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum, std::string_view label = "user") {
    communicator().all_reduce(tensor, op, label);
  }
  /// As all_reduce, but the result is on `root` alone; unchanged elsewhere.
  void reduce(const at::Tensor& tensor, int root = 0, ReduceOp op = ReduceOp::sum, std::string_view label = "user") {
    communicator().reduce(tensor, root, op, label);
  }
  void barrier() { communicator().barrier("user"); }  ///< waits for all ranks
  /// The objects of all ranks, by rank: of any type that cereal serialises.
  template <class T>
  std::vector<T> all_gather_object(const T& object) {
    return unpack<T>(communicator().all_gather_bytes(pack(object), "object"));
  }
  /// As all_gather_object, for `root` alone; empty elsewhere.
  template <class T>
  std::vector<T> gather_object(const T& object, int root = 0) {
    return unpack<T>(communicator().gather_bytes(pack(object), root, "object"));
  }
  /// One object out of all ranks': `combine(so_far, next)` in rank order, so that all ranks get the same one to the
  /// bit.
  ///
  ///     const auto total = rank.all_reduce_object(counter, [](Counter a, const Counter& b) { return a += b; });
  template <class T, class Combine>
  T all_reduce_object(const T& object, Combine&& combine) {
    return fold(all_gather_object(object), combine);
  }
  /// As all_reduce_object, for `root` alone; nothing elsewhere.
  template <class T, class Combine>
  std::optional<T> reduce_object(const T& object, Combine&& combine, int root = 0) {
    auto objects = gather_object(object, root);
    if (objects.empty()) return std::nullopt;
    return fold(std::move(objects), combine);
  }
  /// The object of `root`, on all ranks.
  template <class T>
  T broadcast_object(const T& object, int root = 0) {
    return unpack<T>({communicator().broadcast_bytes(pack(object), root, "object")}).front();
  }

  /// Optimizer steps of an epoch, known once a loader was made.
  std::int64_t steps_per_epoch() const noexcept;
  /// Optimizer steps of the whole run, known once a loader was made.
  std::int64_t total_steps() const noexcept;
  /// Takes checkpoint_dir for this job before anything is loaded, if the config has checkpoints saved. For programs
  /// that keep them; rank 0 of a job that begins does it. Throws Error(usage) if the job is not resumed and another
  /// run's checkpoints lie there, Error(unavailable) if another job writes there; neither touches the content.
  void claim_checkpoints();
  /// The times of this rank's steps so far.
  const StepProfile& profile() const noexcept;
  /// After the last step: if the run ends within the trace's window, writes the part that there is. Collective. For
  /// troupe::main.
  void end_trace();
  /// The job has failed: this rank's part of the trace goes to a separate file. For troupe::main.
  void give_up_trace() noexcept;
  /// Shows its loop to `watch` from now on; before distribute. For troupe::main.
  void show_loop_to(std::shared_ptr<LoopWatch> watch) noexcept;
  /// Its steps are recorded (docs/observe.md), by this rank while it is rank 0. For troupe::main, which requests
  /// it.
  void keep_records() noexcept;
  /// They are shown on the console, too, and begin now; before distribute. For a loop that leaves the console to
  /// Troupe. Throws Error(usage) if run_dir holds another run's records, Error(io) if it can't be made.
  void show_progress();
  /// The loop is over: waits for a save that is under way, ends the records, and drops all references to the program's
  /// objects. `error`: the loop's, empty if all is well.
  void end_loop(const std::string& error) noexcept;
  /// Instead, in a rank that the job drops: its records are its successor's.
  void leave_loop() noexcept;
  /// Share, 0 to 1, of the reducer's time in collectives that was hidden behind compute, over this rank's steps so far.
  /// It is a lower bound: collectives that ran while compute waited count as not hidden, even if it waited for
  /// something else. 1 if there were none.
  double overlap() const noexcept { return profile().overlap(); }
  /// Share, 0 to 1, of the steps' time that compute waited for communication: for gradients and the vote, and within
  /// forward and backward.
  double exposed_communication() const noexcept { return profile().exposed_communication(); }

 private:
  friend RankSystem& system_of(Rank& rank) noexcept;
  friend RankParts& parts_of(Rank& rank) noexcept;
  template <class Build>
  auto build(Build& make) {
    const auto building = seed_model(config_.seed);
    return config_.deferred_init ? deferred_init(make) : make();
  }
  template <class Model>
  static std::shared_ptr<torch::nn::Module> module_of(Model& model) {
    if constexpr (requires { model.ptr(); }) {
      return model.ptr();
    } else {
      return model;
    }
  }
  void add_log(const std::string& name, std::variant<double, at::Tensor> value, Reduce reduce,
               std::optional<double> weight);
  void add_state(const std::string& name, OwnStateAccess access);
  void refuse_built(const torch::nn::Module& model) const;
  void distribute_module(std::shared_ptr<torch::nn::Module> model);
  void initialise(torch::nn::Module& model) const;
  Optimizer& adapted(torch::optim::Optimizer& optimizer, const char* operation);
  Optimizer& in_use(Optimizer& optimizer);

  template <class T, class Combine>
  static T fold(std::vector<T> objects, Combine&& combine) {
    T all = std::move(objects.front());
    for (std::size_t r = 1; r < objects.size(); ++r) all = combine(std::move(all), objects[r]);
    return all;
  }

  template <class T>
  static std::string pack(const T& object) {
    std::ostringstream out;
    {
      cereal::PortableBinaryOutputArchive archive(out);
      archive(object);
    }
    return out.str();
  }
  template <class T>
  static std::vector<T> unpack(const std::vector<std::string>& blobs) {
    std::vector<T> objects;
    for (const auto& blob : blobs) {
      std::istringstream in(blob);
      cereal::PortableBinaryInputArchive archive(in);
      objects.emplace_back();
      archive(objects.back());
    }
    return objects;
  }

  const Config config_;
  const std::unique_ptr<RankParts> parts_;
  RankSystem& system_;  // one of them
};

/// The rank of the calling thread, for a function without access to it. Throws Error(usage) in another thread.
Rank& this_rank();

/// The program's `main`: parses config and environment, becomes a rank of the job that launched it, N simulated ranks
/// (`--ranks N`), or one rank alone; calls `body` on each rank's thread; reports its exceptions; returns the exit code.
int main(int argc, char** argv, const std::function<void(Rank&)>& body,
         const std::function<void(Config&)>& declare = {});

}  // namespace troupe

#include "launch/loop/batch_stream.hpp"    // IWYU pragma: export
#include "launch/loop/uneven_batches.hpp"  // IWYU pragma: export
