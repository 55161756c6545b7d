#include "launch/rank/rank.hpp"

#include <algorithm>
#include <csignal>
#include <sstream>
#include <utility>

#include "actors/block/activation_checkpointing.hpp"
#include "actors/rank/data_loader.hpp"
#include "launch/config/device_settings.hpp"
#include "launch/process/displayable.hpp"
#include "launch/rank/gathered_model.hpp"
#include "launch/rank/loop_records.hpp"
#include "launch/rank/model_file.hpp"
#include "launch/rank/run_checkpoints.hpp"
#include "launch/rank/uneven_batches.hpp"
#include "strategies/batch_norm/sync_batch_norm.hpp"
#include "strategies/batch_norm/uncounted_forward.hpp"
#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/base/random_seed.hpp"
#include "tensor_io/base/steady_time.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"
#include "tensor_io/checkpoint/directory_lock.hpp"
#include "tensor_io/layers/module_modes.hpp"
#include "tensor_io/layout/named_parameters.hpp"
#include "tensor_io/optimizer/fused_optimizer.hpp"
#include "tensor_io/optimizer/schedule.hpp"
#include "tensor_io/optimizer/torch_optimizer.hpp"

namespace troupe {
namespace {

// Of Compute::notes: steps done, and the epoch and step of the data to come.
constexpr const char* kCursorNote = "data_cursor";

// Since `mark`, which is now from here on.
double lap_ms(std::chrono::steady_clock::time_point& mark) {
  const auto now = std::chrono::steady_clock::now();
  return std::chrono::duration<double, std::milli>(now - std::exchange(mark, now)).count();
}

RunCheckpoints::Position position(const DataCursor& cursor) { return {cursor.epoch, cursor.step, -1}; }

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
      system_(std::make_unique<RankSystem>(system, with_trace(std::move(options), trace_))) {
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
  if (!config_.resume.empty() && !keeps_checkpoints_) {
    throw Error(ErrorCode::usage, "resume", "resume is '" + config_.resume + "', and this program keeps no checkpoints",
                "call rank.keep_checkpoints(optimizer) before rank.loader(dataset)");
  }
  open_records();
  return BatchStream(*this, std::move(dataset));
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
    if (checkpoints_ && error.code() == ErrorCode::parked && error.report().rank == rank())
      checkpoints_->save_alone(position(cursor()));
    throw;
  }
}

StepReport Rank::step(Optimizer& optimizer) {
  auto report = saving_if_parked([&] { return system_->compute().step(optimizer, rate_for(optimizer)); });
  if (report.pending) {
    forward_started_ = std::chrono::steady_clock::now();
    if (stream_ != nullptr) stream_->share_ended();
    return report;
  }
  report.data_ms = step_data_ms_;
  report.batch_queue_ms = step_queue_ms_;
  profile_.add(report, step_compute_ms_);
  record(report);
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
  return report;
}

void Rank::open_records() {
  if (keeps_records_ && !records_) records_ = std::make_unique<LoopRecords>(*this);
}

void Rank::record(const StepReport& report) {
  open_records();
  if (!records_) return;
  LoopRecords::Place place;
  if (stream_ != nullptr)
    place = {stream_->cursor().epoch, stream_->cursor().step + 1,
             stream_->dataset().tokens_per_sample()};  // of the step just done
  records_->add(report, place);
}

void Rank::end_records(const std::string& error) noexcept {
  if (!records_) return;
  records_->fail(error);
  records_.reset();
}

void Rank::update_trace() {
  if (trace_ && model_) trace_->update(steps_done());
}

void Rank::gather_trace_if_due() {
  auto& compute = system_->compute();
  if (!trace_ || compute.micro_batch() != 0) return;
  retry([&] {
    if (!trace_->due(compute.steps_done()) || !compute.section_due(kTraceSection)) return;
    const auto line = trace_->gather(communicator(), compute.membership());
    compute.section_done(kTraceSection);
    if (!line.empty()) tell_trace(line);
    compute.begin_step_time();
    forward_started_ = std::chrono::steady_clock::now();
  });
}

void Rank::tell_trace(const std::string& line) {
  if (records_) records_->note("trace", line);
  if (say_trace_) return say_trace_(line);
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

void Rank::run_program_task() {
  auto& compute = system_->compute();
  if (!between_steps_ || compute.steps_done() == 0 || !compute.section_due(kProgramSection)) return;
  ModuleModes modes(*model_);
  between_steps_(compute.steps_done());
  modes.forget();
  compute.section_done(kProgramSection);
}

void Rank::run_between_steps() {
  auto& compute = system_->compute();
  if (compute.micro_batch() != 0 || compute.steps_done() == 0) return;
  gather_trace_if_due();  // once more, where a rank was lost after it
  retry([&] {
    run_program_task();
    if (checkpoints_ && compute.section_due(kSaveSection)) {
      if (saves_now()) checkpoints_->save(position(cursor()), false);
      compute.section_done(kSaveSection);
    }
  });
}

// The last checkpoint. False where the loss of a rank took all back to a snapshot meanwhile: the steps from there on
// are run again.
bool Rank::end_of_steps() {
  auto& compute = system_->compute();
  if (compute.micro_batch() != 0) return true;
  compute.settle();
  if (!checkpoints_) return true;
  const auto done = compute.steps_done();
  std::string path;
  const bool ended = retry([&] {
    run_between_steps();
    if (compute.steps_done() < done) return false;
    if (compute.section_due(kLastSaveSection)) {
      if (!saves_now()) checkpoints_->save(position(cursor()), false);
      compute.section_done(kLastSaveSection);
    }
    path = checkpoints_->finish([this] { checkpoints_->save(position(cursor()), false); });
    return true;
  });
  if (!ended) return false;
  if (is_main() && !path.empty()) std::fprintf(stderr, "checkpoint: %s\n", path.c_str());
  if (checkpoints_->failure()) throw Error(*checkpoints_->failure());
  return true;
}

bool Rank::saves_now() const {
  return config_.save_every > 0 && steps_done() > 0 && steps_done() % config_.save_every == 0;
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
  if (!model_)
    throw Error(ErrorCode::usage, "keep_checkpoints", "no model was distributed",
                "call rank.distribute(model) before it");
  if (checkpoints_)
    throw Error(ErrorCode::usage, "keep_checkpoints", "it was called before", "one call is for the whole loop");
  if (stream_ != nullptr)
    throw Error(ErrorCode::usage, "keep_checkpoints", "the loader has begun", "call it before rank.loader(dataset)");
  claim_checkpoints();
  checkpoints_ = std::make_unique<RunCheckpoints>(*this, optimizer);
  auto& compute = system_->compute();
  const bool joined_late = compute.membership().generation > 1;
  if (!config_.resume.empty() && compute.steps_done() == 0) {
    retry([&] {
      const auto position = checkpoints_->resume(config_.resume, [this](const std::string& line) {
        if (is_main()) std::fprintf(stderr, "%s\n", line.c_str());
      });
      set_cursor(position.epoch, position.step_in_epoch);
      start_round_ = position.round;
    });
  }
  if (!joined_late) compute.section_done(kSaveSection);  // nothing to do before the first step
}

void Rank::keep_checkpoints(torch::optim::Optimizer& optimizer) {
  keep_checkpoints(adapted(optimizer, "keep_checkpoints"));
}

NamedTensors Rank::state_dict(Optimizer& optimizer, int root) {
  if (!model_)
    throw Error(ErrorCode::usage, "state_dict", "no model was distributed", "call rank.distribute(model) before it");
  return whole_model(system_->compute(), optimizer, root);
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

BatchStream::BatchStream(Rank& rank, std::shared_ptr<const Dataset> dataset)
    : rank_(&rank), dataset_(std::move(dataset)) {
  auto& compute = rank.system().compute();
  compute.set_dataset(dataset_->size(), dataset_->files_hash());
  const auto& config = rank.config();
  compute.expect_elements(
      static_cast<double>(config.batch_size * std::max<std::int64_t>(1, dataset_->tokens_per_sample())));
  compute.share_batches(config.batch_size / config.grad_accum_steps, rank.system().options().world_size);
  const DistributedSampler sampler(sampling());
  const auto steps = sampler.steps_per_epoch();
  steps_done_ = compute.steps_done();
  const bool first = !std::exchange(rank.had_stream_, true);
  if (first && compute.membership().generation > 1 && rank.start_epoch_ == 0 && rank.start_step_ == 0) {
    cursor_ = cursor_of_others(steps);
  } else {
    cursor_ = {rank.start_epoch_ + rank.start_step_ / steps, rank.start_step_ % steps};
  }
  // By steps done, not by the cursor: a run that was resumed with another batch size has done more or fewer than lie
  // before it.
  const auto left = std::max<std::int64_t>(0, (config.epochs - cursor_.epoch) * steps - cursor_.step);
  const auto all = steps_done_ + left;
  rank.set_schedule_length(steps, config.max_steps > 0 ? std::min(config.max_steps, all) : all);
  note_cursor();
  rank.stream_ = this;
  start();
}

// A newcomer to a running job begins where the others are. A run that was resumed with another batch size need not have
// done as many steps as lie before its cursor, so they say where that is.
DataCursor BatchStream::cursor_of_others(std::int64_t steps_per_epoch) const {
  auto at = steps_done_;
  const auto& notes = rank_->system().compute().notes();
  if (const auto found = notes.find(kCursorNote); found != notes.end()) {
    std::istringstream text(found->second);
    std::int64_t done = 0, epoch = 0, step = 0;
    if (text >> done >> epoch >> step) at = epoch * steps_per_epoch + step + steps_done_ - done;
  }
  return {at / steps_per_epoch, at % steps_per_epoch};
}

void BatchStream::note_cursor() const {
  rank_->system().compute().notes()[kCursorNote] =
      std::to_string(steps_done_) + " " + std::to_string(cursor_.epoch) + " " + std::to_string(cursor_.step);
}

SamplerOptions BatchStream::sampling() const {
  const auto& config = rank_->config();
  const auto& compute = rank_->system().compute();
  const auto shard = compute.data_shard();
  return {dataset_->size(),
          config.batch_size,
          std::max(config.grad_accum_steps, compute.shares_per_rank()),
          shard.index,
          shard.count,
          config.shuffle,
          config.drop_last,
          config.seed,
          rank_->world_size() != rank_->system().options().world_size,
          dataset_->shard_sizes(),
          config.shuffle_buffer,
          compute.batch_shares()};
}

void BatchStream::start() {
  const auto& config = rank_->config();
  DataLoaderOptions options;
  options.rank = loader_rank_ = rank_->rank();
  loader_world_size_ = rank_->world_size();
  options.dataset = dataset_;
  options.sampler = sampling();
  loader_shares_ = options.sampler.shares;
  options.start = cursor_;
  options.epochs = config.epochs;
  if (config.max_steps > 0) {
    options.max_steps = std::max<std::int64_t>(0, config.max_steps - steps_done_);
    if (options.max_steps == 0) options.epochs = 0;
  }
  options.num_workers = config.num_workers;
  options.prefetch = config.prefetch;
  if (!rank_->device().is_cpu()) options.feed = std::make_shared<DeviceFeed>(rank_->device());
  options.consumer = rank_->system().compute().address();
  options.supervisor = rank_->system().supervisor();
  ended_ = false;
  if (rank_->system().compute().shares_per_rank() > 0) return start_shares(std::move(options));
  if (DirectLoader::suits(options)) {
    direct_.emplace(options);
    return;
  }
  loader_ = caf::actor_cast<caf::actor>(rank_->system().system().spawn<caf::detached>(data_loader, options));
  caf::anon_send(loader_, GrantBatches{2});
}

// Which share comes next is known when the one before is done, so nothing is loaded ahead: each is loaded here, when it
// is handed out.
void BatchStream::start_shares(DataLoaderOptions options) {
  share_makers_.clear();
  for (int index = 0; index < loader_world_size_; ++index) {
    options.sampler.rank = index;
    share_makers_.emplace_back(options, DistributedSampler(options.sampler));
  }
}

std::optional<BatchDone> BatchStream::load_share() {
  const auto& config = rank_->config();
  const auto steps = rank_->steps_per_epoch();
  if (cursor_.epoch >= config.epochs || (config.max_steps > 0 && steps_done_ >= config.max_steps)) return std::nullopt;
  const auto share = rank_->system().compute().strategy().next_share();
  BatchOrder order;
  order.epoch = cursor_.epoch;
  order.step = cursor_.step;
  order.micro_batch = share.micro_batch;
  order.last_of_epoch = cursor_.step + 1 == steps;
  return share_makers_.at(static_cast<std::size_t>(share.index)).load(order);
}

void BatchStream::stop() {
  direct_.reset();
  share_makers_.clear();
  if (!loader_) return;
  caf::anon_send_exit(loader_, caf::exit_reason::user_shutdown);
  auto& mailbox = rank_->system().compute().mailbox();
  mailbox.wait_for(loader_);
  loader_ = {};
  // What was under way is of no use to the next loader.
  bool more = true;
  while (more) {
    mailbox.receive([](const BatchLoaded&) {}, [](const DataEnded&) {},
                    caf::after(std::chrono::seconds(0)) >> [&] { more = false; });
  }
}

BatchStream::BatchStream(BatchStream&& other) noexcept
    : rank_(other.rank_),
      dataset_(std::move(other.dataset_)),
      loader_(std::exchange(other.loader_, {})),
      direct_(std::move(other.direct_)),
      cursor_(other.cursor_),
      steps_done_(other.steps_done_),
      loader_rank_(other.loader_rank_),
      loader_world_size_(other.loader_world_size_),
      loader_shares_(std::move(other.loader_shares_)),
      again_(std::move(other.again_)),
      step_(std::move(other.step_)),
      share_makers_(std::move(other.share_makers_)),
      ended_(other.ended_) {
  if (rank_->stream_ == &other) rank_->stream_ = this;
}

BatchStream::~BatchStream() {
  stop();
  if (rank_->stream_ == this) rank_->stream_ = nullptr;
}

void BatchStream::committed() {
  if (step_.empty()) return;
  cursor_ = step_.back()->last_of_epoch ? DataCursor{step_.back()->epoch + 1, 0}
                                        : DataCursor{step_.back()->epoch, step_.back()->step + 1};
  ++steps_done_;
  step_.clear();
  note_cursor();
}

void BatchStream::rewind() {
  const auto back = steps_done_ - rank_->system().compute().steps_done();
  if (back > 0) {  // all ranks went back to a snapshot
    const auto steps = rank_->steps_per_epoch(), at = cursor_.epoch * steps + cursor_.step - back;
    cursor_ = {at / steps, at % steps};
    steps_done_ -= back;
    note_cursor();
    again_.clear();
    step_.clear();
    stop();
    start();
    return;
  }
  if (!share_makers_.empty()) step_.clear();  // they are handed out anew
  for (; !step_.empty(); step_.pop_back()) again_.push_front(step_.back());
  if (rank_->rank() == loader_rank_ && rank_->world_size() == loader_world_size_ &&
      rank_->system().compute().batch_shares() == loader_shares_)
    return;
  again_.clear();
  stop();
  start();
}

std::shared_ptr<const Batch> BatchStream::next() {
  for (;;) {
    if (auto batch = take()) return batch;
    if (rank_->end_of_steps()) return nullptr;
  }
}

namespace {

// A batch was loaded, in whichever thread.
void trace_load(double load_ms, std::int64_t loaded_ns) {
  if (active_track() == nullptr) return;
  auto& track = trace_recorder()->track("data loader");
  TraceEvent load;
  load.set_name("load batch");
  load.begin_ns = loaded_ns - static_cast<std::int64_t>(load_ms * 1e6);
  load.end_ns = loaded_ns;
  if (load.begin_ns >= track.began_ns()) track.add(load);
}

}  // namespace

std::shared_ptr<const Batch> BatchStream::receive() {
  auto& compute = rank_->system().compute();
  const auto loaded = compute.receive_next<BatchLoaded, DataEnded>("data loader", "the next batch");
  if (!loaded) return nullptr;
  trace_load(loaded->load_ms, loaded->loaded_ns);
  if (active_track() != nullptr) trace_message("BatchLoaded", "data loader", loaded->loaded_ns - 1);
  rank_->step_queue_ms_ += 1e-6 * static_cast<double>(std::max<std::int64_t>(0, steady_now_ns() - loaded->loaded_ns));
  caf::anon_send(loader_, GrantBatches{1});
  return loaded->batch;
}

std::shared_ptr<const Batch> BatchStream::make_here() {
  rank_->system().compute().throw_if_interrupted();
  const auto made = direct_ ? direct_->next() : load_share();
  if (!made) return nullptr;
  if (!made->batch) {  // told as a loader's actor tells it: compute first, which throws it
    caf::anon_send(rank_->system().compute().address(), RankFailed{made->report});
    caf::anon_send(rank_->system().supervisor(), RankFailed{made->report});
    return receive();
  }
  trace_load(made->load_ms, made->loaded_ns);
  return made->batch;
}

std::shared_ptr<const Batch> BatchStream::take() {
  auto& compute = rank_->system().compute();
  rank_->run_between_steps();
  if (rank_->stop_requested() && compute.micro_batch() == 0) return nullptr;
  if (compute.micro_batch() == 0) rank_->update_trace();
  auto started = std::chrono::steady_clock::now();
  fault_point("data", compute.steps_done());
  std::shared_ptr<const Batch> batch;
  while (!batch) {
    if (!again_.empty()) {
      batch = again_.front();
      again_.pop_front();
    } else if (ended_) {
      break;
    } else {
      try {
        batch = direct_ || !share_makers_.empty() ? make_here() : receive();
        ended_ = !batch;
      } catch (const Error& error) {  // the generation was interrupted while this rank waited for data
        rank_->recover(error);
        rank_->run_between_steps();  // the loss may have made it due again
        started = std::chrono::steady_clock::now();
      }
    }
  }
  const auto waited_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - started).count();
  trace_since(started.time_since_epoch().count(), "data");
  rank_->step_data_ms_ += waited_ms;
  compute.count_data_wait(waited_ms);
  if (!batch) return nullptr;
  DeviceFeed::receive(*batch);
  step_.push_back(batch);
  rank_->begin_forward(batch->numel(), batch->weight);
  return batch;
}

}  // namespace troupe
