#include "launch/rank.hpp"

#include <csignal>

#include "actors/data_loader.hpp"
#include "strategies/sync_batch_norm.hpp"
#include "tensor_io/fused_optimizer.hpp"
#include "tensor_io/schedule.hpp"
#include "tensor_io/torch_optimizer.hpp"

namespace troupe {

Rank::Rank(caf::actor_system& system, Config config, RankSystemOptions options)
    : config_(std::move(config)), system_(std::make_unique<RankSystem>(system, std::move(options))) {}

Rank::~Rank() = default;

void Rank::distribute_module(std::shared_ptr<torch::nn::Module> model) {
  model_ = model;
  system_->compute().distribute(std::move(model));
}

std::unique_ptr<Optimizer> Rank::make_optimizer(const torch::nn::Module& model) const {
  ParameterGroup group;
  for (const auto& item : model.named_parameters()) {
    if (item.value().requires_grad()) group.parameters.emplace_back(item.key(), item.value());
  }
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
  DataLoaderOptions options;
  options.rank = rank();
  options.dataset = std::move(dataset);
  options.sampler = {options.dataset->size(), config_.batch_size, config_.grad_accum_steps, rank(), world_size(), config_.shuffle,
                     config_.drop_last,       config_.seed};
  const DistributedSampler sampler(options.sampler);
  const auto all = config_.epochs * sampler.steps_per_epoch();
  set_schedule_length(sampler.steps_per_epoch(), config_.max_steps > 0 ? std::min(config_.max_steps, all) : all);
  options.start = {start_epoch_, start_step_};
  options.epochs = config_.epochs;
  const auto done = start_epoch_ * sampler.steps_per_epoch() + start_step_;
  options.max_steps = config_.max_steps > 0 ? std::max<std::int64_t>(0, config_.max_steps - done) : 0;
  if (config_.max_steps > 0 && options.max_steps == 0) options.epochs = 0;
  options.num_workers = config_.num_workers;
  options.prefetch = config_.prefetch;
  options.consumer = system_->compute().address();
  options.supervisor = system_->supervisor();
  auto actor = system_->system().spawn<caf::detached>(data_loader, options);
  return BatchStream(*this, caf::actor_cast<caf::actor>(actor), 2);
}

std::optional<double> Rank::uneven_step(std::int64_t samples) {
  const auto mine = at::full({1}, samples, at::kLong);
  auto all = at::empty({world_size()}, at::kLong);
  communicator().all_gather(all, mine, "samples");
  const auto total = all.sum().item<std::int64_t>();
  if (total == 0) return std::nullopt;
  return static_cast<double>(samples) * world_size() / static_cast<double>(total);
}

bool Rank::begin_uneven(std::int64_t samples, bool has_batch) {
  if (!model_) throw Error(ErrorCode::usage, "uneven", "no model was distributed", "call rank.distribute(model) before the loop");
  if (config_.grad_accum_steps > 1) {
    throw Error(ErrorCode::usage, "uneven", "grad_accum_steps is " + std::to_string(config_.grad_accum_steps),
                "set it to 1: how much a micro-batch weighs is known only once the step's last one is");
  }
  if (stop_requested()) return false;  // the same on all ranks, since the vote carried it
  const auto weight = uneven_step(samples);
  if (!weight) return false;
  if (!has_batch) {
    throw Error(ErrorCode::usage, "uneven", "this rank has no batch at all, others have", "give each rank one at least");
  }
  batch_samples_ = static_cast<double>(samples);
  batch_weight_ = *weight;
  count_samples_in_sync_batchnorm(*model_, samples == 0 ? 0 : -1);
  system_->compute().seed_forward();
  forward_started_ = std::chrono::steady_clock::now();
  return true;
}

void Rank::end_uneven() noexcept {
  batch_samples_ = 0;
  batch_weight_ = 1;
  if (model_) count_samples_in_sync_batchnorm(*model_, -1);
}

void Rank::backward(const at::Tensor& loss, double correct) { backward(loss, correct, batch_samples_, batch_weight_); }

void Rank::backward(const at::Tensor& loss, double correct, double samples, double weight) {
  system_->compute().backward(loss, samples, correct, weight);
  const auto now = std::chrono::steady_clock::now();
  step_compute_ms_ += std::chrono::duration<double, std::milli>(now - forward_started_).count();
  forward_started_ = now;
}

double Rank::learning_rate() const { return scheduled_lr(config_, system_->compute().steps_done(), steps_per_epoch_, total_steps_); }

StepReport Rank::step(Optimizer& optimizer) {
  auto report = system_->compute().step(optimizer, learning_rate());
  profile_.add(report, step_data_ms_, step_compute_ms_);
  step_data_ms_ = step_compute_ms_ = 0;
  forward_started_ = std::chrono::steady_clock::now();
  if (report.stop_signal != 0) stop_signal_ = report.stop_signal;
  return report;
}

StepReport Rank::step(torch::optim::Optimizer& optimizer) {
  for (auto& [known, adapter] : adapters_) {
    if (known == &optimizer) return step(*adapter);
  }
  if (!model_) throw Error(ErrorCode::usage, "step", "no model was distributed", "call rank.distribute(model) before the loop");
  adapters_.emplace_back(&optimizer, std::make_unique<TorchOptimizer>(optimizer, *model_));
  return step(*adapters_.back().second);
}

BatchStream::BatchStream(Rank& rank, caf::actor loader, std::int32_t credits) : rank_(&rank), loader_(std::move(loader)) {
  caf::anon_send(loader_, GrantBatches{credits});
}

BatchStream::BatchStream(BatchStream&& other) noexcept : rank_(other.rank_), loader_(std::move(other.loader_)) { other.loader_ = {}; }

BatchStream::~BatchStream() {
  if (!loader_) return;
  caf::anon_send_exit(loader_, caf::exit_reason::user_shutdown);
  auto& mailbox = rank_->system().compute().mailbox();
  mailbox.wait_for(loader_);
  // What was under way is of no use to the next loader.
  bool more = true;
  while (more) {
    mailbox.receive([](const BatchLoaded&) {}, [](const DataEnded&) {}, caf::after(std::chrono::seconds(0)) >> [&] { more = false; });
  }
}

std::shared_ptr<const Batch> BatchStream::next() {
  auto& compute = rank_->system().compute();
  if (rank_->stop_requested() && compute.micro_batch() == 0) return nullptr;
  const auto started = std::chrono::steady_clock::now();
  auto loaded = compute.receive_next<BatchLoaded, DataEnded>("data loader", "the next batch");
  rank_->data_wait_ms_ = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - started).count();
  rank_->step_data_ms_ += rank_->data_wait_ms_;
  if (!loaded) return nullptr;
  caf::anon_send(loader_, GrantBatches{1});
  rank_->batch_samples_ = static_cast<double>(loaded->batch->numel());
  compute.seed_forward();
  rank_->forward_started_ = std::chrono::steady_clock::now();
  return loaded->batch;
}

}  // namespace troupe
