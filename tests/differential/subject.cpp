#include "tests/differential/subject.hpp"

#include <csignal>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>

#include "actors/block/block.hpp"
#include "launch/program/job.hpp"
#include "strategies/batch_norm/sync_batch_norm.hpp"
#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"
#include "tensor_io/data/bad_samples.hpp"
#include "tensor_io/layers/autocast.hpp"
#include "tensor_io/layers/dropout.hpp"
#include "tensor_io/layers/parallel_layers.hpp"
#include "tensor_io/layout/named_parameters.hpp"
#include "tensor_io/optimizer/fused_optimizer.hpp"
#include "tensor_io/optimizer/torch_optimizer.hpp"
#include "tests/differential/net.hpp"
#include "tests/differential/optimizers.hpp"
#include "tests/differential/samples.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/scratch_directory.hpp"

namespace troupe::differential {
namespace {

using namespace std::chrono_literals;
namespace optim = torch::optim;

struct TroupeKit {
  using Linear = troupe::nn::Linear;
  using Embedding = troupe::nn::Embedding;
  using BatchNorm = troupe::nn::BatchNorm;
  using Dropout = troupe::nn::Dropout;
  template <class Impl>
  using Block = BlockHolder<Impl>;
  static at::Tensor scores(Embedding& words, const at::Tensor& x) { return words->scores(x); }
};
using Net = NetImpl<TroupeKit>;

class SampleSet final : public Dataset {
 public:
  SampleSet(const Job& job, std::int64_t first, std::int64_t size) : job_(job), first_(first), size_(size) {}
  std::int64_t size() const override { return size_; }
  Example get(std::int64_t index, const SampleContext&) const override {
    if (index == job_.bad_sample) throw Error(ErrorCode::bad_data, "sample", "it can't be read", "");
    return {input_of(job_, first_ + index), target_of(job_, first_ + index)};
  }
  bool quick(std::int64_t) const override { return true; }

 private:
  const Job& job_;
  std::int64_t first_, size_;
};

std::shared_ptr<const Dataset> sample_set(const Job& job, std::int64_t first, std::int64_t size) {
  return std::make_shared<SkipBadSamples>(std::make_shared<SampleSet>(job, first, size));
}

bool is_torch(const Job& job) { return job.optimizer.starts_with("torch."); }

bool set_fsdp_mode(Config& config, const std::string& strategy) {
  for (const char* mode : {"shard_grad_op", "hybrid_shard", "no_shard"}) {
    if (strategy != mode) continue;
    config.strategy = "fsdp";
    config.fsdp_mode = mode;
    return true;
  }
  return false;
}

Config config_of(const Job& job, const std::string& folder) {
  Config config;
  config.ranks = job.ranks;
  config.backend = job.backend;
  config.strategy = job.strategy;
  if (set_fsdp_mode(config, job.strategy) && config.fsdp_mode == "hybrid_shard") config.fsdp_shard_size = 2;
  if (job.strategy == "fsdp/gathered") {
    config.strategy = "fsdp";
    config.fsdp_mapped = false;
  }
  if (const auto plan = job.strategy.find('/'); plan != std::string::npos && !job.strategy.starts_with("fsdp/")) {
    config.strategy = job.strategy.substr(0, plan);  // pipeline or tensor_parallel, and its mesh
    config.mesh = job.strategy.substr(plan + 1);
  }
  if (job.strategy.find("tp=") != std::string::npos || job.strategy == "tensor_parallel") {
    if (job.model == "tokens") config.tensor_plan = "words: vocabulary";
    for (int c = 0; c < job.cells; ++c) {
      const auto cell = ", cell" + std::to_string(c);
      if (job.model == "tokens") config.tensor_plan += cell + ".qkv: gather";
      config.tensor_plan += cell + ".linear: gather";
    }
    if (config.tensor_plan.starts_with(", ")) config.tensor_plan.erase(0, 2);
  }
  config.staleness = 0;
  config.seed = static_cast<std::uint64_t>(job.seed);
  config.batch_size = job.batch_size;
  config.grad_accum_steps = job.accumulate;
  config.drop_last = job.drop_last;
  config.shuffle = job.shuffle;
  config.balance = job.balance;
  if (job.balance == "weights") {
    config.balance = "1";
    for (int r = 1; r < job.ranks; ++r) config.balance += "," + std::to_string(r + 1);
  }
  config.epochs = epochs_of(job);
  config.max_steps = job.max_steps;
  config.optimizer = is_torch(job) ? "sgd" : job.optimizer;
  if (!is_torch(job)) config.lr = rate_of(job);
  config.momentum = job.rule == "plain" ? 0 : 0.9;
  config.nesterov = job.rule == "other";
  config.weight_decay = job.weight_decay;
  config.eps = kEps;
  config.clip_norm = job.clip_norm;
  config.schedule = job.schedule;
  config.lr_step_epochs = 1;
  config.lr_step_factor = 0.5;
  config.warmup_steps = job.warmup_steps;
  config.on_not_finite = "skip";
  config.bucket_cap_mb = job.bucket_mb;
  config.first_bucket_mb = std::min(1.0, job.bucket_mb);
  config.comm_hook = job.comm_hook;
  config.broadcast_buffers = job.broadcast_buffers;
  config.sync_batchnorm = job.sync_batchnorm;
  config.static_graph = job.static_graph;
  config.early_update = job.early_update;
  config.activation_checkpointing = job.checkpointing;
  config.use_amp = job.amp != "none";
  if (config.use_amp) config.amp_dtype = job.amp;
  config.loss_scaler = job.loss_scaler;
  config.sync_every = job.sync_every;
  config.outer_momentum = job.outer_momentum;
  config.diloco_fragments = job.fragments;
  config.diloco_overlap = job.overlap;
  config.diloco_mixing = kMixing;
  config.powersgd_rank = job.powersgd_rank;
  config.powersgd_start_step = 0;
  config.switch_at = job.switch_at;
  config.verify_every = job.verify_every;
  config.snapshot_every = job.snapshot_every;
  config.validate_every = job.validate > 0 ? 1 : 0;
  config.save_every = 5;
  config.keep_last = 100;
  config.log_interval = 1;
  config.checkpoint_dir = folder + "/checkpoints";
  config.run_dir = folder + "/run";
  config.collective_timeout = 20;
  return config;
}

std::vector<ParameterGroup> our_groups(const Job& job, const torch::nn::Module& net) {
  std::vector<ParameterGroup> groups(job.groups == "one" ? 1 : 2);
  if (job.groups == "rates") groups[1].lr_scale = 0.5;
  if (job.groups == "zero") groups[0].lr_scale = 0;
  if (job.groups == "decay") groups[1].weight_decay = 0;
  for (const auto& [name, parameter] : unique_parameters(net))
    groups[groups.size() > 1 && in_second_group(name) ? 1 : 0].parameters.emplace_back(name, parameter);
  return groups;
}

/// As a program makes it: of `parameters()`, which lists a tied tensor twice, or of each tensor once.
std::unique_ptr<optim::Optimizer> their_optimizer(const Job& job, const torch::nn::Module& net) {
  NamedTensors listed;
  for (const auto& item : net.named_parameters()) listed.emplace_back(item.key(), item.value());
  return torch_optimizer(job, job.listed == "once" ? unique_parameters(net) : listed);
}

/// The ranks' threads write down here what they see.
class Notes {
 public:
  explicit Notes(Outcome& outcome) : outcome_(outcome) {}

  void step(const StepReport& report) {
    std::lock_guard lock(mutex_);
    outcome_.steps[report.step] = {report.committed, report.loss,          report.samples,
                                   report.correct,   report.gradient_norm, report.lr};
  }
  void between(int rank) {
    std::lock_guard lock(mutex_);
    if (rank == 0) ++outcome_.between_steps;
  }
  void samples(const Job& job, const Batch& batch, const DataShard& shard) {
    std::lock_guard lock(mutex_);
    const auto of_step = std::min<std::int64_t>(job.batch_size, job.samples - batch.step * job.batch_size);
    const auto begin = of_step * batch.micro_batch / job.accumulate,
               end = of_step * (batch.micro_batch + 1) / job.accumulate;
    const auto part = std::int64_t{job.batch_size} / job.accumulate;
    const auto first = batch.step * job.batch_size + begin + (end - begin) * (part * shard.index / shard.count) / part;
    const auto index = batch.index.accessor<std::int64_t, 1>();
    for (std::int64_t i = 0; i < batch.counted; ++i) order_[batch.epoch][first + i] = index[i];
  }
  const Order& order() const { return order_; }
  void output(std::int64_t step, at::ScalarType type) {
    std::lock_guard lock(mutex_);
    types_[step] = c10::toString(type);
  }
  void finish() {
    for (auto& [step, seen] : outcome_.steps) seen.type = types_[step];
  }

 private:
  std::mutex mutex_;
  Outcome& outcome_;
  Order order_;
  std::map<std::int64_t, std::string> types_;
};

/// A life of a rank.
class Life {
 public:
  Life(const Job& job, Rank& rank, Notes& notes, std::int64_t stop_after)
      : job_(job), rank_(rank), notes_(notes), stop_after_(stop_after) {}

  void run() {
    rank_.between_steps([this](std::int64_t) { notes_.between(rank_.rank()); });
    job_.loop == "framework" ? framework() : custom();
  }

 private:
  std::shared_ptr<Net> make_net() const {
    auto net = std::make_shared<Net>(job_);
    fill(*net, job_);
    if (job_.frozen != "toggled") freeze(*net, job_, 0);  // else once it is distributed
    return net;
  }

  Loss loss_of(Net& net, const at::Tensor& input, const at::Tensor& target, const Place& place) {
    freeze(net, job_, rank_.steps_done());
    stop_if_due();
    const auto autocast = rank_.autocast();
    const auto output = net.forward(input, place);
    const auto parts = loss_parts(job_, output, target);
    if (net.is_training()) notes_.output(place.step, output.scalar_type());
    auto sum = parts.sum;
    const bool is_first = rank_.system().compute().data_shard().index == 0;
    if (job_.event == "infinite" && place.step == kChangeStep && is_first)
      sum = sum * std::numeric_limits<double>::infinity();
    const auto correct = static_cast<double>(parts.correct);
    if (job_.loss == "masked") return Loss::sum(sum, parts.count, correct);
    return {sum / static_cast<double>(std::max<std::int64_t>(1, parts.count)), correct};
  }
  Loss loss_of(Net& net, const Batch& batch) {
    if (net.is_training()) notes_.samples(job_, batch, rank_.system().compute().data_shard());
    const Place place{rank_.steps_done(),
                      static_cast<int>(batch.micro_batch),
                      {{rank_.rank(), batch.index[0].item<std::int64_t>(), batch.numel()}}};
    return loss_of(net, batch.input, batch.target, place);
  }
  void stop_if_due() {
    if (stop_after_ > 0 && rank_.steps_done() == stop_after_ - 1)
      rank_.system().compute().services().status->stop_signal.store(SIGTERM);
  }

  void custom() {
    const auto net = make_net();
    rank_.distribute(net);
    if (is_torch(job_)) {
      const auto optimizer = their_optimizer(job_, *net);
      loop(*net, *optimizer);
    } else {
      const auto optimizer = job_.groups == "one" && job_.frozen != "first"
                                 ? rank_.make_optimizer(*net)
                                 : troupe::make_optimizer(rank_.config(), our_groups(job_, *net));
      loop(*net, *optimizer);
    }
  }

  template <class Optimizer>
  void loop(Net& net, Optimizer& optimizer) {
    if (job_.feed == "uneven") return uneven(net, optimizer);
    rank_.keep_checkpoints(optimizer);
    std::vector<std::shared_ptr<const Batch>> of_step;
    auto stream = rank_.loader(sample_set(job_, 0, job_.samples));
    while (const auto batch = stream.next()) {
      try {
        if (rank_.orders_micro_batches()) {
          if (batch->micro_batch == 0) of_step.clear();
          of_step.push_back(batch);
          if (!batch->last_of_step) continue;
          rank_.run_micro_batches(of_step, [&](const Batch& of) { return loss_of(net, of); });
        } else {
          rank_.backward(loss_of(net, *batch));
          if (!batch->last_of_step) continue;
        }
      } catch (const Error& error) {
        rank_.recover(error);
        continue;
      }
      const auto report = rank_.step(optimizer);
      if (!report.repeat && !report.pending && rank_.is_main()) notes_.step(report);
    }
  }

  template <class Optimizer>
  void uneven(Net& net, Optimizer& optimizer) {
    rank_.keep_checkpoints(optimizer);
    std::vector<at::Tensor> batches;
    for (const auto& batch : uneven_batches(job_, rank_.rank())) batches.push_back(torch::tensor(batch, at::kLong));
    for (const auto& batch : rank_.uneven(batches)) {
      const std::vector<std::int64_t> indices(batch.data_ptr<std::int64_t>(),
                                              batch.data_ptr<std::int64_t>() + batch.numel());
      const auto samples = samples_at(job_, indices);
      const auto loss = loss_of(net, samples.input, samples.target,
                                {rank_.steps_done(), 0, {{rank_.rank(), indices.front(), batch.size(0)}}});
      rank_.backward(loss);
      const auto report = rank_.step(optimizer);
      if (!report.repeat && rank_.is_main()) notes_.step(report);
    }
  }

  void framework() {
    std::unique_ptr<optim::Optimizer> theirs;
    troupe::Job job;
    job.model = [&](const Config&) { return make_net(); };
    job.data = [&](const Config&) {
      Datasets sets{sample_set(job_, 0, job_.samples), {}};
      if (job_.validate > 0) sets.held_out = sample_set(job_, kHeldOut, job_.validate);
      return sets;
    };
    job.loss = [&](torch::nn::Module& net, const Batch& batch, const Config&) {
      return loss_of(dynamic_cast<Net&>(net), batch);
    };
    if (is_torch(job_)) {
      job.optimizer = [&](const torch::nn::Module& net, const Config&) -> std::unique_ptr<troupe::Optimizer> {
        theirs = their_optimizer(job_, net);
        return std::make_unique<TorchOptimizer>(*theirs, net);
      };
    } else if (job_.groups != "one" || job_.frozen == "first") {
      job.optimizer = [&](const torch::nn::Module& net, const Config& config) {
        return troupe::make_optimizer(config, our_groups(job_, net));
      };
    }
    troupe::train(job, rank_);
  }

  const Job& job_;
  Rank& rank_;
  Notes& notes_;
  std::int64_t stop_after_;
};

void read_metrics(const std::string& path, Outcome& outcome) {
  std::istringstream lines(testing::read_text(path));
  for (std::string line; std::getline(lines, line);) {
    const auto entry = nlohmann::json::parse(line, nullptr, false);
    if (entry.is_discarded()) continue;
    const auto number = [&](const char* name) {
      return entry.contains(name) && entry[name].is_number() ? entry[name].get<double>() : std::nan("");
    };
    if (entry["kind"] == "validation") outcome.held_out_loss = number("validation_metrics/loss");
    if (entry["kind"] != "train") continue;
    auto& seen = outcome.steps[entry["step"].get<std::int64_t>() - 1];
    seen.loss = number("loss_metrics/global_avg_loss");
    seen.norm = number("grad_norm");
    seen.rate = number("lr");
    seen.committed = number("skipped_steps") == 0;
    seen.samples = seen.correct = -1;
  }
}

void read_checkpoints(const std::string& folder, Outcome& outcome) {
  for (const auto& entry : list_checkpoints(folder)) {
    auto& state = outcome.states[entry.step];
    for (const auto& [name, tensor] : load_checkpoint(folder, entry.path).state.tensors) state[name] = tensor;
  }
}

}  // namespace

Outcome subject(const Job& job, const std::string& folder, Order& order) {
  Outcome outcome;
  Notes notes(outcome);
  const auto phase = [&](const Job& of, Config config, std::int64_t stop_after) {
    auto simulation = testing::simulation_of(config);
    if (of.event == "kill") {
      simulation.recovery.enabled = true;
      simulation.recovery.replace_timeout = 60s;
      simulation.faults = [&](int slot, int life) {
        const bool mine = slot == of.ranks - 1 && life == 0;
        return mine ? std::vector<PlacedFault>{{of.kill_at, kChangeStep, ChaosKind::kill, 0ms}}
                    : std::vector<PlacedFault>();
      };
    }
    const int code = testing::run_simulation(
        config, simulation, [&](Rank& rank) { Life(of, rank, notes, stop_after).run(); },
        [&](int slot, const ErrorReport& report) {
          outcome.error += "slot " + std::to_string(slot) + ": " + report.to_string() + "; ";
        });
    if (code != 0 && outcome.error.empty() && stop_after == 0) outcome.error = "exit code " + std::to_string(code);
  };
  auto config = config_of(job, folder);
  phase(job, config, job.event == "resume" ? kResumeStep : 0);
  if (job.event == "resume" && outcome.error.empty()) {
    auto second = job;
    if (job.resume_ranks > 0) second.ranks = job.resume_ranks;
    if (job.resume_batch > 0) second.batch_size = job.resume_batch;
    if (!job.resume_strategy.empty()) second.strategy = job.resume_strategy;
    const auto epochs = config.epochs;
    config = config_of(second, folder);
    config.epochs = epochs;
    config.resume = "latest";
    phase(second, config, 0);
  }
  if (job.shuffle) order = notes.order();
  if (!outcome.error.empty()) return outcome;
  if (job.loop == "framework") read_metrics(config.run_dir + "/metrics.jsonl", outcome);
  read_checkpoints(config.checkpoint_dir, outcome);
  notes.finish();
  return outcome;
}

}  // namespace troupe::differential
