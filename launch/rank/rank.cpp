#include "launch/rank/rank.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "actors/block/activation_checkpointing.hpp"
#include "actors/rank/data_loader.hpp"
#include "launch/config/device_settings.hpp"
#include "launch/process/displayable.hpp"
#include "launch/rank/batch_stream.hpp"
#include "launch/rank/gathered_model.hpp"
#include "launch/rank/model_file.hpp"
#include "launch/rank/run_checkpoints.hpp"
#include "launch/rank/run_records.hpp"
#include "launch/rank/step_tasks.hpp"
#include "launch/rank/uneven_batches.hpp"
#include "launch/rank/validation.hpp"
#include "strategies/batch_norm/sync_batch_norm.hpp"
#include "strategies/batch_norm/uncounted_forward.hpp"
#include "tensor_io/base/random_seed.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"
#include "tensor_io/checkpoint/directory_lock.hpp"
#include "tensor_io/layers/module_modes.hpp"
#include "tensor_io/layout/named_parameters.hpp"
#include "tensor_io/optimizer/fused_optimizer.hpp"
#include "tensor_io/optimizer/schedule.hpp"
#include "tensor_io/optimizer/torch_optimizer.hpp"

namespace troupe {
namespace {

// Since `mark`, which is now from here on.
double lap_ms(std::chrono::steady_clock::time_point& mark) {
  const auto now = std::chrono::steady_clock::now();
  return std::chrono::duration<double, std::milli>(now - std::exchange(mark, now)).count();
}

RunCheckpoints::Position position(const DataCursor& cursor) { return {cursor.epoch, cursor.step}; }

RunRecords::Place place_of_step(const BatchStream* stream) {
  if (stream == nullptr) return {};
  return {stream->cursor().epoch, stream->cursor().step + 1, &stream->dataset()};
}

// The step just done was the best one that was held out.
bool is_best(Compute& compute) { return BestAccuracy::of(compute).step == compute.steps_done(); }

std::unique_ptr<RankTrace> make_trace(const Config& config, const RankSystemOptions& options) {
  auto setting = profile_setting(config.profile);
  if (!setting.traces()) return nullptr;
  if (config.ranks > 1 && options.process.slot != 0) setting.operators = false;  // Kineto is one per process
  return std::make_unique<RankTrace>(
      RankTraceOptions{setting, config.run_dir, options.job_id, options.world_size, !options.device.is_cpu()});
}

RankSystemOptions with_trace(RankSystemOptions options, const std::unique_ptr<RankTrace>& trace) {
  if (trace) options.trace = trace->recorder();
  return options;
}

}  // namespace

Rank::Rank(caf::actor_system& system, Config config, RankSystemOptions options)
    : config_(std::move(config)),
      trace_(make_trace(config_, options)),
      system_(std::make_unique<RankSystem>(system, with_trace(std::move(options), trace_))),
      tasks_(std::make_unique<StepTasks>(system_->compute())) {
  set_tasks();
  // What the program builds before distribute. Simulated ranks share the generator: a model that distribute does not
  // build itself depends on the order of their draws.
  (void)seed_model(config_.seed);
}

Rank::~Rank() {
  forget_uncounted();
  profile_of_process().add(profile_);
}

void Rank::refuse_built(const torch::nn::Module& model) const {
  if (!config_.deferred_init) return;
  const auto parameters = model.parameters();
  const bool deferred = std::any_of(parameters.begin(), parameters.end(), is_deferred);
  const bool small = std::none_of(parameters.begin(), parameters.end(),
                                  [](const at::Tensor& p) { return p.nbytes() >= kLeastDeferredBytes; });
  if (deferred || small) return;
  throw Error(ErrorCode::usage, "deferred_init", "the model that rank.distribute was given has its memory already",
              "give it what makes the model: rank.distribute([&] { return MyModel(...); })");
}

void Rank::distribute_module(std::shared_ptr<torch::nn::Module> model) {
  check_device_settings(config_, device());
  open_records();
  model_ = model;
  if (config_.sync_batchnorm) convert_sync_batchnorm(*model, system_->compute().services().program_lane);
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
  if (!device().is_cpu()) model->to(device());
  system_->compute().distribute(std::move(model));
  if (!trace_) return;
  trace_->set_model(model_);
  if (config_.resume.empty() || steps_done() > 0) update_trace();  // else the step to go on from is not known yet
  gather_trace_if_due();                                           // of a newcomer: the others are in Rank::step
}

// Rank 0's values go to all with the model.
void Rank::initialise(torch::nn::Module& model) const {
  if (config_.init_from.empty() || !config_.resume.empty() || !is_main() ||
      system_->compute().membership().generation > 1)
    return;
  const auto report = load_initial_model(model, {config_.init_from, config_.init_rename, config_.init_allow_missing});
  std::fprintf(stderr, "%s\n", report.c_str());
}

std::unique_ptr<Optimizer> Rank::make_optimizer(const torch::nn::Module& model) const {
  ParameterGroup group;
  group.parameters = unique_parameters(model);
  std::erase_if(group.parameters, [](const auto& entry) { return !entry.second.requires_grad(); });
  return troupe::make_optimizer(config_, {std::move(group)});
}

void Rank::set_schedule_length(std::int64_t steps_per_epoch, std::int64_t total_steps) {
  steps_per_epoch_ = steps_per_epoch;
  total_steps_ = total_steps;
}

void Rank::set_cursor(std::int64_t epoch, std::int64_t step_in_epoch) {
  start_epoch_ = epoch;
  start_step_ = step_in_epoch;
}

BatchStream Rank::loader(std::shared_ptr<const Dataset> dataset) {
  if (!config_.resume.empty() && !checkpoints_) {
    throw Error(ErrorCode::usage, "resume", "resume is '" + config_.resume + "', and this program keeps no checkpoints",
                "call rank.keep_checkpoints(optimizer) before rank.loader(dataset)");
  }
  open_records();
  const bool begins = system_->compute().membership().generation == 1;
  if (records_ && shows_progress_ && begins) {
    say("model: " + system_->compute().strategy().describe() + "; " + std::to_string(world_size()) + " rank" +
        (world_size() == 1 ? "" : "s") + ", backend " + std::string(communicator().backend()) +
        (device().is_cpu() ? "" : ", device " + device().str()) + "; data: " + dataset->name() + ", " +
        std::to_string(dataset->size()) + " samples");
  }
  BatchStream batches(*this, std::move(dataset));
  if (optimizer_ != nullptr) begin_records();  // else the first step does it
  return batches;
}

void Rank::begin_forward(std::int64_t samples, double weight) {
  batch_samples_ = static_cast<double>(samples);
  batch_weight_ = weight;
  forget_uncounted();
  if (weight == 0 && model_) uncounted_ = std::make_unique<UncountedForward>(*model_);
  system_->compute().seed_forward();
  forward_started_ = std::chrono::steady_clock::now();
}

// Its forward is not done, or its step was given up.
void Rank::forget_uncounted() noexcept {
  if (uncounted_) uncounted_->keep_buffers();
  uncounted_.reset();
}

void Rank::end_uneven() noexcept {
  uneven_ = nullptr;
  batch_samples_ = 0;
  batch_weight_ = 1;
  forget_uncounted();
}

AutocastGuard Rank::autocast() {
  has_autocast_ = true;
  return AutocastGuard(config_.use_amp, config_.amp_dtype == "fp16" ? at::kHalf : at::kBFloat16, device().type());
}

void Rank::backward(const Loss& loss, double samples, double weight) {
  if (system_->compute().uses_graphs()) {
    throw Error(ErrorCode::usage, "cuda_graphs", "forward was not handed over, so it can't be a part of a graph",
                "call rank.run_micro_batches(batches, forward) in the place of backward, or leave cuda_graphs out");
  }
  if (config_.use_amp && !has_autocast_) {
    throw Error(ErrorCode::usage, "use_amp", "use_amp is set, and this program's loop runs forward without autocast",
                "put `const auto autocast = rank.autocast();` before forward");
  }
  auto& compute = system_->compute();
  compute.expect_rate(learning_rate());
  compute.backward({loss, samples, weight});
  uncounted_.reset();
  step_compute_ms_ += lap_ms(forward_started_);
}

void Rank::run_micro_batches(const std::vector<std::shared_ptr<const Batch>>& batches,
                             const std::function<Loss(const Batch&)>& forward) {
  const auto wanted = static_cast<std::size_t>(config_.grad_accum_steps);
  if (batches.size() != wanted) {
    throw Error(ErrorCode::usage, "run_micro_batches",
                "it was given " + std::to_string(batches.size()) + " batches, and a step has " + std::to_string(wanted),
                "collect the loader's batches up to last_of_step");
  }
  auto& compute = system_->compute();
  forget_uncounted();  // the last of them was, as yet without its forward
  if (compute.uses_graphs()) {
    run_graphed(batches, forward);
  } else if (orders_micro_batches()) {
    compute.run_micro_batches([&](std::int64_t m) {
      const auto& batch = *batches.at(static_cast<std::size_t>(m));
      std::optional<UncountedForward> uncounted;
      if (batch.weight == 0) uncounted.emplace(*model_);
      return Compute::MicroBatchLoss{forward(batch), static_cast<double>(batch.numel()), batch.weight};
    });
  } else {
    for (const auto& batch : batches) {
      begin_forward(batch->numel(), batch->weight);
      backward(forward(*batch), batch_samples_, batch_weight_);
    }
  }
  step_compute_ms_ += lap_ms(forward_started_);
}

void Rank::run_graphed(const std::vector<std::shared_ptr<const Batch>>& batches,
                       const std::function<Loss(const Batch&)>& forward) {
  for (const auto& batch : batches) {
    Compute::GraphedMicroBatch micro_batch;
    for (const auto* part : {&batch->input, &batch->target}) {
      if (part->defined()) micro_batch.inputs.push_back(*part);
    }
    micro_batch.samples = static_cast<double>(batch->numel());
    micro_batch.weight = batch->weight;
    if (batch->counted != batch->numel()) micro_batch.kind = "counted " + std::to_string(batch->counted);
    micro_batch.forward = [&](const std::vector<at::Tensor>& inputs) {
      Batch of_graph;  // the host's numbers in it would be those of the batch that the graph was written with
      of_graph.counted = batch->counted;
      std::size_t next = 0;
      if (batch->input.defined()) of_graph.input = inputs[next++];
      if (batch->target.defined()) of_graph.target = inputs[next++];
      return forward(of_graph);
    };
    std::optional<UncountedForward> uncounted;
    if (batch->weight == 0) uncounted.emplace(*model_);
    system_->compute().run_graphed(micro_batch);
  }
}

int Rank::stop_signal() const {
  const auto& notes = system_->compute().notes();
  const auto found = notes.find("stop_signal");
  return found == notes.end() ? 0 : std::stoi(found->second);
}

double Rank::learning_rate() const { return scheduled(config_, steps_done()); }

double Rank::scheduled(const OptimizerOptions& options, std::int64_t step) const {
  const auto total = total_steps_ > 0 ? total_steps_ : config_.max_steps;
  if (options.schedule == "cosine" && total == 0) {
    throw Error(ErrorCode::usage, "schedule",
                "cosine goes by the run's length, which a loop without rank.loader does not tell", "set max_steps");
  }
  if (options.schedule == "step" && steps_per_epoch_ == 0) {
    throw Error(ErrorCode::usage, "schedule", "step goes by epochs, and a loop without rank.loader has none",
                "use constant or cosine");
  }
  return scheduled_lr(options, step, steps_per_epoch_, total);
}

double Rank::rate_for(const Optimizer& optimizer, std::int64_t step) const {
  if (!optimizer.has_own_rates()) return scheduled(config_, step);
  const auto given = config_.sources.find("lr");
  if (given != config_.sources.end() && config_.lr != OptimizerOptions().lr) {  // a printed config has the default, too
    throw Error(ErrorCode::usage, "lr",
                given->second + " sets it, and this program's " + optimizer.name() + " optimizer has rates of its own",
                "give the rate to its constructor, or take rank.make_optimizer");
  }
  if (config_.schedule == "cosine" && config_.lr_min != 0) {
    throw Error(ErrorCode::usage, "lr_min",
                "it is a rate, and this program's " + optimizer.name() +
                    " optimizer has rates of its own, which a schedule multiplies",
                "leave it at 0");
  }
  auto factor = static_cast<const OptimizerOptions&>(config_);
  factor.lr = 1;
  return scheduled(factor, step);
}

// Too few ranks are left: what is committed goes to disk, without the others, while the program still holds model and
// optimizer.
template <class Work>
auto Rank::saving_if_parked(Work&& work) {
  try {
    return work();
  } catch (const Error& error) {
    const bool loops = stream_ != nullptr || uneven_ != nullptr;  // else nothing says where the data stands
    if (checkpoints_ && loops && error.code() == ErrorCode::parked && error.report().rank == rank())
      checkpoints_->save_alone(position(cursor()));
    throw;
  }
}

StepReport Rank::step(Optimizer& optimizer) {
  optimizer_ = &optimizer;
  begin_records();
  const auto place = place_of_step(stream_);
  auto report = saving_if_parked([&] { return system_->compute().step(optimizer, rate_for(optimizer)); });
  if (report.pending) {
    forward_started_ = std::chrono::steady_clock::now();
    if (stream_ != nullptr) stream_->share_ended();
    return report;
  }
  report.data_ms = step_data_ms_;
  report.batch_queue_ms = step_queue_ms_;
  profile_.add(report, step_compute_ms_);
  step_data_ms_ = step_compute_ms_ = step_queue_ms_ = 0;
  forward_started_ = std::chrono::steady_clock::now();
  if (report.stop_signal != 0) system_->compute().notes()["stop_signal"] = std::to_string(report.stop_signal);
  if (stream_ != nullptr && !report.repeat) stream_->committed();
  if (stream_ != nullptr) stream_->rewind();
  update_trace();
  gather_trace_if_due();
  if (!report.repeat && steps_done() <= report.step) {  // a rank was lost meanwhile, and all went back
    report.committed = false;
    report.repeat = true;
    report.reason =
        system_->compute().membership().reason + ", from the snapshot of step " + std::to_string(steps_done());
    update_trace();
  }
  if (report.repeat) uneven_interrupted_ = true;
  if (records_) records_->add(report, place);
  return report;
}

void Rank::show_progress() {
  keeps_records_ = shows_progress_ = true;
  open_records();
}

void Rank::open_records() {
  if (!keeps_records_ || records_) return;
  records_ = std::make_unique<RunRecords>(*this, shows_progress_ ? RunLog::Voice::console : RunLog::Voice::silent);
}

// Where the loop begins: its optimizer is known, and so is the rate of a step that a dead rank 0 has not written down.
void Rank::begin_records() {
  open_records();
  if (!records_ || records_->has_begun()) return;
  RunRecords::Place last;
  if (stream_ != nullptr) {
    const auto& cursor = stream_->cursor();
    const bool at_start = cursor.step == 0 && cursor.epoch > 0;
    last = {cursor.epoch - (at_start ? 1 : 0), at_start ? steps_per_epoch_ : cursor.step, &stream_->dataset()};
  }
  const auto lr = optimizer_ != nullptr && steps_done() > 0
                      ? optimizer_->first_rate(rate_for(*optimizer_, steps_done() - 1))
                      : std::numeric_limits<double>::quiet_NaN();
  records_->begin(last, lr);
}

// For the console where Troupe has it; else it is rank 0's on standard error.
void Rank::say(const std::string& line) const {
  if (records_ && shows_progress_) return records_->line(line);
  if (is_main()) std::fprintf(stderr, "%s\n", line.c_str());
}

void Rank::end_loop(const std::string& error) noexcept {
  checkpoints_.reset();
  validation_.reset();
  optimizer_ = nullptr;
  if (records_) records_->fail(error);
  records_.reset();
  keeps_records_ = false;
}

void Rank::update_trace() {
  if (trace_ && model_) trace_->update(steps_done());
}

void Rank::gather_trace() {
  if (!trace_ || !trace_->due(steps_done())) return;
  const auto line = trace_->gather(communicator(), system_->compute().membership());
  if (!line.empty()) tell_trace(line);
  system_->compute().begin_step_time();
  forward_started_ = std::chrono::steady_clock::now();
}

void Rank::gather_trace_if_due() {
  if (!trace_ || system_->compute().micro_batch() != 0) return;
  retry([&] { tasks_->run(StepTasks::trace, StepTasks::trace); });
}

void Rank::tell_trace(const std::string& line) {
  if (records_) records_->note("trace", line);
  if (say_trace_) return say_trace_(line);
  if (records_ && shows_progress_) return;  // it was shown
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void Rank::end_trace() {
  if (!trace_ || !model_ || trace_ended_ || !trace_->cut_off(steps_done())) return;
  trace_ended_ = true;
  try {
    const auto line = trace_->gather(communicator(), system_->compute().membership());
    if (!line.empty()) tell_trace(line);
  } catch (const Error& error) {  // not tried again: the training is over, and a newcomer would begin elsewhere
    if (!may_be_recovered(error.code())) throw;
    give_up_trace();
  }
}

void Rank::give_up_trace() noexcept {
  if (!trace_ || rank() < 0) return;
  try {
    const auto line = trace_->write_alone(rank(), system_->options().host);
    if (!line.empty()) std::fprintf(stderr, "%s\n", line.c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "trace: what rank %d recorded is lost: %s\n", rank(), error.what());
  }
}

void Rank::set_tasks() {
  tasks_->set(StepTasks::trace, [this] { gather_trace(); });
  tasks_->set(StepTasks::program, [this] {
    if (!between_steps_) return;
    ModuleModes modes(*model_);
    between_steps_(steps_done());
    modes.forget();
  });
  tasks_->set(StepTasks::validation, [this] {
    const auto epoch = cursor().epoch;
    if (epoch_is_over() && epoch % std::max<std::int64_t>(1, config_.validate_every) == 0) validate(epoch - 1, true);
  });
  tasks_->set(StepTasks::save, [this] {
    if (saves_now()) save();
  });
  tasks_->set(StepTasks::last_validation, [this] {
    if (!epoch_is_over() && !stop_requested()) validate(cursor().epoch, false);
  });
  tasks_->set(StepTasks::last_save, [this] {
    if (!saves_now()) save();
  });
}

bool Rank::epoch_is_over() const { return uneven_ == nullptr && cursor().step == 0 && cursor().epoch > 0; }

void Rank::validate(std::int64_t epoch, bool may_be_best) {
  if (!validation_) return;
  auto report = validation_->run();
  report.epoch = epoch;
  auto& compute = system_->compute();
  if (may_be_best && (report.accuracy > BestAccuracy::of(compute).value || is_best(compute))) {
    report.best = true;
    BestAccuracy{report.accuracy, steps_done()}.keep(compute);
  }
  begin_records();
  if (records_) records_->add(report, validation_->held_out());
}

bool Rank::saves_now() const {
  const auto done = steps_done();
  return is_best(system_->compute()) || (config_.save_every > 0 && done > 0 && done % config_.save_every == 0);
}

void Rank::save() {
  if (!checkpoints_) return;
  const TraceSpan span("checkpoint", TraceEvent::Kind::phase);
  auto mark = std::chrono::steady_clock::now();
  checkpoints_->save(position(cursor()), is_best(system_->compute()));
  if (records_) records_->add_checkpoint(lap_ms(mark));
}

void Rank::run_between_steps() {
  if (system_->compute().micro_batch() != 0 || steps_done() == 0) return;
  gather_trace_if_due();  // once more, where a rank was lost after it
  retry([&] { tasks_->run(StepTasks::program, StepTasks::save); });
}

// False where the loss of a rank took all back to a snapshot meanwhile: the steps from there on are run again. Throws
// where it interrupts: all ranks are to find out again whether the loop is over.
bool Rank::end_of_steps() {
  auto& compute = system_->compute();
  if (compute.micro_batch() != 0) return true;
  const auto done = compute.steps_done();
  compute.settle();
  begin_records();
  run_between_steps();
  if (compute.steps_done() < done) return false;
  tasks_->run(StepTasks::last_validation, StepTasks::last_save);
  // No rank leaves before the others are done, and the last checkpoint is on disk: one that is lost meanwhile can still
  // be replaced.
  if (checkpoints_) {
    tell_end(checkpoints_->finish([this] { save(); }));
  } else if (validation_) {
    barrier();
    tell_end({});
  }
  return true;
}

void Rank::tell_end(const std::string& checkpoint) {
  if (const auto best = BestAccuracy::of(system_->compute()).value; validation_ && records_ && best >= 0) {
    char text[64];
    std::snprintf(text, sizeof text, "best held-out accuracy: %.2f%%", 100 * best);
    records_->line(text);
  }
  if (!checkpoint.empty()) say("checkpoint: " + checkpoint);
  if (records_ && checkpoints_ && stop_requested())
    records_->note("notice",
                   "stopped by a signal after step " + std::to_string(steps_done()) + "; --resume latest goes on");
  if (checkpoints_ && checkpoints_->failure()) throw Error(*checkpoints_->failure());
}

DataCursor Rank::cursor() const {
  if (stream_ != nullptr) return stream_->cursor();
  return uneven_ != nullptr ? uneven_->cursor() : DataCursor{start_epoch_, start_step_};
}

void Rank::claim_checkpoints() {
  if (config_.save_every < 0 || !is_main() || system_->compute().membership().generation > 1) return;
  const auto& directory = config_.checkpoint_dir;
  if (!checkpoint_lock_) checkpoint_lock_ = std::make_shared<DirectoryLock>(directory);
  if (!config_.resume.empty() || !system_->options().begins) return;
  const auto others = list_checkpoints(directory);
  if (others.empty()) return;
  throw Error(ErrorCode::usage, "checkpoint_dir",
              displayable(directory, 200) + " holds another run's checkpoints, the newest of step " +
                  std::to_string(others.back().step),
              "--resume latest goes on from it, another --checkpoint_dir starts beside it");
}

void Rank::keep_checkpoints(Optimizer& optimizer) {
  refuse_late("keep_checkpoints", checkpoints_ != nullptr);
  claim_checkpoints();
  optimizer_ = &optimizer;
  checkpoints_ = std::make_unique<RunCheckpoints>(*this, optimizer);
  if (!config_.resume.empty() && steps_done() == 0) {
    retry([&] {
      const auto position = checkpoints_->resume(config_.resume, [this](const std::string& line) { say(line); });
      set_cursor(position.epoch, position.step_in_epoch);
      start_round_ = position.round;
    });
  }
  if (system_->compute().membership().generation == 1) tasks_->pass(StepTasks::save);
}

void Rank::validate_on(std::shared_ptr<const Dataset> held_out, std::function<Loss(const Batch&)> loss) {
  refuse_late("validate_on", validation_ != nullptr);
  if (config_.validate_every > 0)
    validation_ = std::make_unique<Validation>(*this, *model_, std::move(held_out), std::move(loss));
}

void Rank::refuse_late(const char* call, bool called) const {
  if (!model_) throw Error(ErrorCode::usage, call, "no model was distributed", "call rank.distribute(model) before it");
  if (called) throw Error(ErrorCode::usage, call, "it was called before", "one call is for the whole loop");
  if (stream_ != nullptr)
    throw Error(ErrorCode::usage, call, "the loader has begun", "call it before rank.loader(dataset)");
}

void Rank::keep_checkpoints(torch::optim::Optimizer& optimizer) {
  keep_checkpoints(adapted(optimizer, "keep_checkpoints"));
}

NamedTensors Rank::state_dict(Optimizer& optimizer, int root) {
  if (!model_)
    throw Error(ErrorCode::usage, "state_dict", "no model was distributed", "call rank.distribute(model) before it");
  return gathered_model(system_->compute(), optimizer, root);
}

NamedTensors Rank::state_dict(torch::optim::Optimizer& optimizer, int root) {
  return state_dict(adapted(optimizer, "state_dict"), root);
}

void Rank::recover(const Error& error) {
  saving_if_parked([&] { system_->compute().recover(error); });
  step_data_ms_ = step_compute_ms_ = step_queue_ms_ = 0;  // the step begins anew, and the stand-still is no part of it
  system_->compute().begin_step_time();
  if (stream_ != nullptr) stream_->rewind();
  uneven_interrupted_ = true;
  gather_trace_if_due();  // where all went back to the window's end: a newcomer gathers in distribute
}

StepReport Rank::step(torch::optim::Optimizer& optimizer) { return step(adapted(optimizer, "step")); }

Optimizer& Rank::adapted(torch::optim::Optimizer& optimizer, const char* operation) {
  for (auto& [known, adapter] : adapters_) {
    if (known == &optimizer) return *adapter;
  }
  if (!model_)
    throw Error(ErrorCode::usage, operation, "no model was distributed", "call rank.distribute(model) before the loop");
  adapters_.emplace_back(&optimizer, std::make_unique<TorchOptimizer>(optimizer, *model_));
  return *adapters_.back().second;
}

}  // namespace troupe
