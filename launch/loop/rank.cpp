#include "launch/loop/rank.hpp"

#include <algorithm>
#include <utility>

#include "actors/block/activation_checkpointing.hpp"
#include "launch/config/device_settings.hpp"
#include "launch/config/unread_settings.hpp"
#include "launch/loop/batch_source.hpp"
#include "launch/loop/rank_parts.hpp"
#include "launch/model/gathered_model.hpp"
#include "launch/model/model_file.hpp"
#include "launch/model/parameter_rules.hpp"
#include "launch/process/displayable.hpp"
#include "launch/process/rank_lines.hpp"
#include "strategies/batch_norm/sync_batch_norm.hpp"
#include "tensor_io/data/data_line.hpp"
#include "tensor_io/layers/deferred_init.hpp"
#include "tensor_io/layout/state_texts.hpp"
#include "tensor_io/optimizer/fused_optimizer.hpp"
#include "tensor_io/optimizer/torch_optimizer.hpp"

namespace troupe {

namespace {

thread_local Rank* rank_of_thread = nullptr;

}  // namespace

Rank& this_rank() {
  if (rank_of_thread == nullptr)
    throw Error(ErrorCode::usage, "this_rank", "this thread does not belong to a rank",
                "call it from the loop's own thread");
  return *rank_of_thread;
}

Rank::Rank(caf::actor_system& system, Config config, RankSystemOptions options)
    : config_(std::move(config)),
      parts_(std::make_unique<RankParts>(*this, system, config_, std::move(options))),
      system_(parts_->system) {
  rank_of_thread = this;
  // What the program builds before distribute. Simulated ranks share the generator: a model that distribute does not
  // build itself depends on the order of their draws.
  (void)seed_model(config_.seed);
}

RankSystem& system_of(Rank& rank) noexcept { return rank.system_; }

RankParts& parts_of(Rank& rank) noexcept { return *rank.parts_; }

int Rank::rank() const noexcept { return system_.compute().rank(); }

int Rank::world_size() const noexcept { return system_.compute().world_size(); }

at::Device Rank::device() const noexcept { return system_.options().device; }

std::int64_t Rank::steps_done() const noexcept { return system_.compute().steps_done(); }

Communicator& Rank::communicator() { return system_.compute().program_communicator(); }

std::shared_ptr<Communicator> Rank::split(int color, int key) {
  std::shared_ptr<Communicator> group = communicator().split(color, key);
  if (!group) return group;
  auto& compute = system_.compute();
  group->ledger().set_step(compute.steps_done());
  caf::anon_send(system_.supervisor(), RegisterCommunicator{group->name(), compute.membership().generation, group});
  return group;
}

Rank::~Rank() {
  profile_of_process().add(profile());
  rank_of_thread = nullptr;
}

void Rank::refuse_built(const torch::nn::Module& model) const {
  if (!config_.deferred_init) return;
  const auto parameters = model.parameters();
  const bool deferred = std::any_of(parameters.begin(), parameters.end(), is_deferred);
  const bool small = std::none_of(parameters.begin(), parameters.end(),
                                  [](const at::Tensor& p) { return p.nbytes() >= kLeastDeferredBytes; });
  if (deferred || small) return;
  throw Error(ErrorCode::usage, "deferred_init", "the model passed to rank.distribute already has its memory",
              "pass a function that builds the model: rank.distribute([&] { return MyModel(...); })");
}

void Rank::distribute_module(std::shared_ptr<torch::nn::Module> model) {
  check_device_settings(config_, device());
  parts_->records.open();
  parts_->model = model;
  if (config_.sync_batchnorm) system_.synchronise_norms(model);
  initialise(*model);
  checkpoint_activations(model, config_.activation_checkpointing);
  if (config_.ranks > 1 && device().is_cpu()) {
    if (const auto path = stock_random_module(*model)) {
      throw Error(ErrorCode::usage, "activation_checkpointing",
                  *path + " draws from LibTorch's generator, which the " + std::to_string(config_.ranks) +
                      " ranks of this process share",
                  "use troupe::nn::Dropout, or start processes with troupe launch");
    }
  }
  if (!device().is_cpu()) move_to(*model, device());
  if (parts_->watch) parts_->watch->built(*model);
  system_.compute().distribute(std::move(model));
  if (parts_->watch) parts_->watch->distributed(*this);
  auto& trace = parts_->trace;
  trace.set_model(parts_->model);
  // Else the step to go on from is not known yet.
  if (config_.resume.empty() || steps_done() > 0) trace.update(steps_done());
  parts_->tasks.gather_trace_if_due();  // of a newcomer: the others are in Rank::step
}

// Rank 0's values go to all with the model.
void Rank::initialise(torch::nn::Module& model) const {
  if (config_.init_from.empty() || !config_.resume.empty() || !is_main() ||
      system_.compute().membership().has_newcomers())  // who get the others' values
    return;
  const auto report = load_initial_model(model, {config_.init_from, config_.init_rename, config_.init_allow_missing});
  print_error_line(report);
}

std::unique_ptr<Optimizer> Rank::make_optimizer(const torch::nn::Module& model, const ParameterRules& rules) const {
  refuse_unread_by_optimizer(config_);
  auto groups = parameter_groups(model, config_, rules);
  parts_->grouped = true;
  return troupe::make_optimizer(config_, std::move(groups));
}

void Rank::schedule(LrSchedule factor) {
  if (parts_->position.has_loop() || parts_->times.profile().steps() > 0)
    throw Error(ErrorCode::usage, "schedule", "the loop has begun", "call rank.schedule before it");
  parts_->schedule.set_own(std::move(factor));
}

BatchStream Rank::loader(std::shared_ptr<const Dataset> dataset) {
  parts_->tasks.check_before_loop();
  auto& records = parts_->records;
  records.open();
  const bool begins = system_.compute().membership().generation == 1;
  if (records.are_shown() && begins) {
    records.line("model: " + system_.compute().strategy().describe() + "; " + std::to_string(world_size()) + " rank" +
                 (world_size() == 1 ? "" : "s") + ", backend " + std::string(communicator().backend()) +
                 (device().is_cpu() ? "" : ", device " + device().str()));
    records.line(data_line(*dataset, parts_->tasks.held_out()));
  }
  BatchStream batches(std::make_unique<BatchSource>(*this, *parts_, std::move(dataset)));
  if (records.has_optimizer()) records.begin();  // else the first step does it
  return batches;
}

AutocastGuard Rank::autocast() { return parts_->micro_batches.autocast(); }

void Rank::backward(const Loss& loss) {
  if (parts_->watch) parts_->watch->loss(loss);
  parts_->micro_batches.backward(loss);
}

void Rank::backward(const Loss& loss, double samples, double weight) {
  if (parts_->watch) parts_->watch->loss(loss);
  parts_->micro_batches.backward(loss, samples, weight);
}

bool Rank::orders_micro_batches() const { return parts_->micro_batches.are_ordered(); }

void Rank::run_micro_batches(const std::vector<std::shared_ptr<const Batch>>& batches,
                             const std::function<Loss(const Batch&)>& forward) {
  parts_->micro_batches.run(batches, forward);
}

int Rank::stop_signal() const { return static_cast<int>(whole_in(system_.compute().notes(), kStopSignal).value_or(0)); }

double Rank::learning_rate() const { return parts_->schedule.learning_rate(steps_done()); }

double Rank::rate_for(const Optimizer& optimizer, std::int64_t step) const {
  return parts_->schedule.rate_for(optimizer, step);
}

std::int64_t Rank::steps_per_epoch() const noexcept { return parts_->schedule.steps_per_epoch(); }
std::int64_t Rank::total_steps() const noexcept { return parts_->schedule.total_steps(); }
const StepProfile& Rank::profile() const noexcept { return parts_->times.profile(); }

StepReport Rank::step(Optimizer& programs) {
  auto& optimizer = in_use(programs);
  if (config_.validate_only) {
    throw Error(ErrorCode::usage, "validate_only",
                "this program's loop does not take its batches from Troupe, and would train",
                "take them from rank.loader or rank.uneven, which give no batches with validate_only");
  }
  parts_->optimizers.use(programs);
  auto& position = parts_->position;
  if (!position.has_loop()) parts_->tasks.check_own_batches();
  auto& times = parts_->times;
  auto& trace = parts_->trace;
  auto& records = parts_->records;
  auto& tasks = parts_->tasks;
  records.set_optimizer(optimizer);
  records.begin();
  const auto place = records.place_of_step();
  auto report = tasks.saving_if_parked([&] { return system_.compute().step(optimizer, rate_for(optimizer)); });
  auto* const source = position.source();
  if (report.pending) {
    times.begin_forward();
    if (source != nullptr) source->share_ended();
    return report;
  }
  times.end_step(report);
  if (report.stop_signal != 0) system_.compute().notes()[kStopSignal] = std::to_string(report.stop_signal);
  if (source != nullptr && !report.repeat) source->committed();
  if (source != nullptr) source->rewind();
  trace.update(steps_done());
  tasks.gather_trace_if_due();
  if (!report.repeat && steps_done() <= report.step) {  // a rank was lost meanwhile, and all went back
    report.committed = false;
    report.repeat = true;
    report.reason =
        system_.compute().membership().reason + ", from the snapshot of step " + std::to_string(steps_done());
    trace.update(steps_done());
  }
  if (report.repeat) position.interrupt();
  records.add(report, place);
  if (parts_->watch) parts_->watch->stepped(*this, optimizer, report);
  if (parts_->callbacks.on_step && !report.repeat) parts_->callbacks.on_step(report);
  return report;
}

void Rank::show_loop_to(std::shared_ptr<LoopWatch> watch) noexcept { parts_->watch = std::move(watch); }

void Rank::keep_records() noexcept { parts_->records.keep(); }

void Rank::show_progress() { parts_->records.show(); }

void Rank::end_loop(const std::string& error) noexcept {
  parts_->tasks.end(error.empty());
  parts_->records.end(error);
}

void Rank::leave_loop() noexcept {
  parts_->tasks.end(false);
  parts_->records.give_up();
}

void Rank::end_trace() { parts_->trace.end(system_, parts_->records); }

void Rank::give_up_trace() noexcept { parts_->trace.give_up(system_); }

void Rank::between_steps(std::function<void(std::int64_t steps_done)> work) {
  parts_->tasks.between_steps(std::move(work));
}

void Rank::claim_checkpoints() { parts_->tasks.claim_checkpoints(); }

void Rank::keep_checkpoints(Optimizer& optimizer) {
  if (parts_->watch) parts_->watch->keeps_checkpoints();
  parts_->tasks.keep_checkpoints(in_use(optimizer));
  parts_->optimizers.keep(optimizer);
}

void Rank::keep_checkpoints(torch::optim::Optimizer& optimizer) {
  keep_checkpoints(adapted(optimizer, "keep_checkpoints"));
}

void Rank::validate_on(std::shared_ptr<const Dataset> held_out, std::function<Loss(const Batch&)> loss) {
  parts_->tasks.validate_on(std::move(held_out), std::move(loss));
}

void Rank::add_log(const std::string& name, std::variant<double, at::Tensor> value, Reduce reduce,
                   std::optional<double> weight) {
  check_own_metric(name);
  auto& compute = system_.compute();
  const char* device_decides = nullptr;
  if (compute.uses_graphs()) device_decides = "cuda_graphs";
  if (config_.vote == "late" && !device().is_cpu()) device_decides = "vote";
  if (device_decides != nullptr)
    throw Error(ErrorCode::usage, "log",
                "a metric can't be logged with " + std::string(device_decides) +
                    ": with it the host does not see each step as it runs",
                "leave " + std::string(device_decides) + " at its default");
  compute.metric_log().add(name, std::move(value), reduce, weight);
}

void Rank::log(const std::string& name, double value, Reduce reduce, std::optional<double> weight) {
  add_log(name, value, reduce, weight);
}

void Rank::log(const std::string& name, const at::Tensor& value, Reduce reduce, std::optional<double> weight) {
  add_log(name, value, reduce, weight);
}

void Rank::add_state(const std::string& name, OwnStateAccess access) {
  const char* late = nullptr;
  if (!parts_->model) late = "no model was distributed";
  if (parts_->tasks.keeps_checkpoints()) late = "keep_checkpoints was called before, and it reads a checkpoint";
  if (parts_->position.has_loop()) late = "the loop has begun";
  if (late != nullptr)
    throw Error(ErrorCode::usage, "state", late, "call rank.state between distribute and keep_checkpoints");
  parts_->own_state.add(name, std::move(access));
}

void Rank::set_callbacks(Callbacks callbacks) {
  if (callbacks.on_update && config_.strategy == "pipeline")
    throw Error(ErrorCode::usage, "on_update", "with strategy pipeline a rank has the parameters of its own stage only",
                "take another strategy, or leave on_update out");
  system_.compute().set_on_update(callbacks.on_update);
  parts_->callbacks = std::move(callbacks);
}

NamedTensors Rank::state_dict(Optimizer& optimizer, int root) {
  if (!parts_->model)
    throw Error(ErrorCode::usage, "state_dict", "no model was distributed", "call rank.distribute(model) before it");
  return gathered_model(system_.compute(), in_use(optimizer), root);
}

NamedTensors Rank::state_dict(torch::optim::Optimizer& optimizer, int root) {
  return state_dict(adapted(optimizer, "state_dict"), root);
}

void Rank::recover(const Error& error) {
  parts_->tasks.saving_if_parked([&] { system_.compute().recover(error); });
  parts_->times.forget_step();  // the step begins anew, and the stand-still is no part of it
  system_.compute().begin_step_time();
  if (auto* const source = parts_->position.source()) source->rewind();
  parts_->position.interrupt();
  parts_->tasks.gather_trace_if_due();  // where all went back to the window's end: a newcomer gathers in distribute
}

StepReport Rank::step(torch::optim::Optimizer& optimizer) { return step(adapted(optimizer, "step")); }

Optimizer& Rank::in_use(Optimizer& optimizer) {
  if (!config_.no_decay.empty() && (!parts_->grouped || optimizer.has_own_rates())) {
    throw Error(ErrorCode::usage, "no_decay",
                "it is '" + displayable(config_.no_decay) + "', and this program groups the parameters of its " +
                    optimizer.name() + " optimizer itself",
                "take rank.make_optimizer(*model), or leave no_decay out");
  }
  return parts_->watch ? parts_->watch->in_place_of(optimizer) : optimizer;
}

Optimizer& Rank::adapted(torch::optim::Optimizer& optimizer, const char* operation) {
  if (!parts_->model)
    throw Error(ErrorCode::usage, operation, "no model was distributed", "call rank.distribute(model) before the loop");
  return parts_->optimizers.adapted(optimizer, *parts_->model);
}

}  // namespace troupe
