#include "tests/differential/life.hpp"

#include <c10/core/AutogradState.h>

#include <csignal>

#include "actors/block/block.hpp"
#include "examples/custom_strategy/gossip.hpp"
#include "launch/loop/rank_system.hpp"
#include "launch/program/job.hpp"
#include "strategies/batch_norm/sync_batch_norm.hpp"
#include "tensor_io/data/bad_samples.hpp"
#include "tensor_io/data/collate.hpp"
#include "tensor_io/layers/autocast.hpp"
#include "tensor_io/layers/dropout.hpp"
#include "tensor_io/layers/parallel_layers.hpp"
#include "tensor_io/layout/named_parameters.hpp"
#include "tensor_io/optimizer/fused_optimizer.hpp"
#include "tensor_io/optimizer/torch_optimizer.hpp"
#include "tests/differential/net.hpp"
#include "tests/differential/optimizers.hpp"
#include "tests/differential/owing_hook.hpp"
#include "tests/differential/samples.hpp"

namespace troupe::differential {
namespace {

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

std::int64_t label_count(const Job& job) { return job.model == "tokens" ? kLength : 1; }

/// A sample's labels (at most label_count,), without those at the end that do not count.
at::Tensor cut_labels(const at::Tensor& target) {
  const auto labels = target.view({-1});
  auto n = labels.size(0);
  while (n > 0 && labels[n - 1].item<std::int64_t>() == -100) --n;
  return labels.narrow(0, 0, n);
}

class SampleSet final : public Dataset {
 public:
  SampleSet(const Job& job, std::int64_t first, std::int64_t size) : job_(job), first_(first), size_(size) {}
  std::int64_t size() const override { return size_; }
  Example get(std::int64_t index, const SampleContext&) const override {
    if (index == job_.bad_sample) throw Error(ErrorCode::bad_data, "sample", "it can't be read", "");
    const auto input = input_of(job_, first_ + index), target = target_of(job_, first_ + index);
    if (job_.feed != "named") return {input, target};
    return {.named = {{"x", input}, {"labels", cut_labels(target)}}};
  }
  Batch collate(const std::vector<Example>& examples) const override {
    if (job_.feed != "named") return Dataset::collate(examples);
    return pad_to_longest(examples, {.values = {{"labels", -100}}}, name());
  }
  bool quick(std::int64_t) const override { return true; }

 private:
  const Job& job_;
  std::int64_t first_, size_;
};

at::Tensor input_in(const Batch& batch) { return batch[batch.input.defined() ? "input" : "x"]; }
at::Tensor target_in(const Job& job, const Batch& batch) {
  if (batch.target.defined()) return batch["target"];
  const auto& labels = batch["labels"];
  return at::constant_pad_nd(labels, {0, label_count(job) - labels.size(1)}, -100);
}

std::shared_ptr<const Dataset> sample_set(const Job& job, std::int64_t first, std::int64_t size) {
  return std::make_shared<SkipBadSamples>(std::make_shared<SampleSet>(job, first, size));
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

/// A life of a rank.
class Life {
 public:
  Life(const Job& job, Rank& rank, std::int64_t stop_after, const TakeNote& note)
      : job_(job), rank_(rank), stop_after_(stop_after), note_(note) {}

  void run() {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);  // the fake device has no thread of autograd
    rank_.keep_records();
    rank_.between_steps([this](std::int64_t) {
      if (rank_.is_main()) note_(note_of_call());
    });
    job_.loop == "framework" ? framework() : custom();
    rank_.end_loop({});
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
    stop_if_due(net.is_training());
    leave_if_due();
    const auto autocast = rank_.autocast();
    const auto output = net.forward(input, place);
    if (net.is_training()) note_(note_of_output(place.step, output.scalar_type()));
    const auto parts = loss_parts(job_, output, target);
    if (job_.graphs) {
      const auto loss = parts.sum / parts.counted.clamp_min(1).to(parts.sum.scalar_type());
      if (job_.desk) rank_.log("own loss", loss.detach());
      return {loss, CorrectSamples(parts.right)};
    }
    auto sum = parts.sum;
    const bool is_first = system_of(rank_).compute().data_shard().index == 0;
    if (job_.event == "infinite" && net.is_training() && place.step == kChangeStep && is_first)
      sum = sum * std::numeric_limits<double>::infinity();
    const auto correct = static_cast<double>(parts.correct());
    if (job_.desk) {
      const auto count = static_cast<double>(std::max<std::int64_t>(1, parts.count()));
      const auto summed = sum.detach();  // a mean is rounded as the loss is
      rank_.log("own loss", (job_.loss == "masked" ? summed.to(at::kDouble) : summed) / count);
      rank_.log("own correct", correct, Reduce::sum);
    }
    if (job_.loss == "masked") return Loss::sum(sum, parts.count(), correct);
    return {sum / static_cast<double>(std::max<std::int64_t>(1, parts.count())), correct};
  }
  Loss loss_of(Net& net, const Batch& batch) {
    if (!batch.index.defined())  // a graph's
      return loss_of(net, input_in(batch), target_in(job_, batch), {rank_.steps_done(), 0, {{0, 0, batch.numel()}}});
    if (net.is_training()) note_(note_of_samples(job_, batch, system_of(rank_).compute().data_shard()));
    const Place place{
        rank_.steps_done(),
        static_cast<int>(batch.micro_batch),
        {{system_of(rank_).compute().data_shard().index, batch.index[0].item<std::int64_t>(), batch.numel()}}};
    return loss_of(net, input_in(batch), target_in(job_, batch), place);
  }
  // At once: the coordinator, which has the notice, asks for it ten times a second.
  void leave_if_due() {
    auto& compute = system_of(rank_).compute();
    const bool mine =
        job_.event == "leave" && compute.membership().generation == 1 && rank_.rank() == hurt_rank_of(job_);
    if (mine && rank_.steps_done() == hurt_step_of(job_)) compute.services().status->leaves = 1;
  }
  void stop_if_due(bool trains) {
    const bool in_validation = job_.stop_at == "validate";
    if (stop_after_ > 0 && trains != in_validation && rank_.steps_done() == stop_after_ - (in_validation ? 0 : 1))
      system_of(rank_).compute().services().status->stop_signal.store(SIGTERM);
  }

  std::shared_ptr<const Dataset> held_out() const { return sample_set(job_, kHeldOut, job_.validate); }

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

  // What a step is counted as must outlive the ranks that counted it.
  Callbacks callbacks(torch::nn::Module& net) {
    if (job_.desk) rank_.state("counted", counted_);
    Callbacks callbacks;
    callbacks.on_step = [this](const StepReport& report) {
      counted_[0] += 1;
      counted_[1] += static_cast<double>(report.step);
    };
    callbacks.on_validation = [this](const ValidationReport& report) {
      counted_[2] += 1;
      counted_[3] += static_cast<double>(report.step);
      if (job_.kill_at != "validated") return;
      auto ranks = at::ones({1}, at::kDouble);  // all learn of the death here, and do the validation again
      rank_.all_reduce(ranks, ReduceOp::sum, "on_validation");
    };
    if (job_.touched) callbacks.on_update = [&net](std::int64_t) { touch(unique_parameters(net)); };
    return callbacks;
  }

  void renew_if_due(const Net& net, optim::Optimizer& optimizer) const {
    if (job_.renewed && rank_.steps_done() == kChangeStep) renew(optimizer, *their_optimizer(job_, net));
  }
  void renew_if_due(const Net&, troupe::Optimizer&) const {}

  template <class Optimizer>
  void loop(Net& net, Optimizer& optimizer) {
    rank_.set_callbacks(callbacks(net));
    rank_.keep_checkpoints(optimizer);
    if (job_.validate > 0) rank_.validate_on(held_out(), [&](const Batch& batch) { return loss_of(net, batch); });
    if (job_.feed == "uneven") return uneven(net, optimizer);
    std::vector<std::shared_ptr<const Batch>> of_step;
    auto stream = rank_.loader(sample_set(job_, 0, job_.samples));
    while (const auto batch = stream.next()) {
      try {
        if (rank_.orders_micro_batches()) {
          if (batch->micro_batch == 0) of_step.clear();
          of_step.push_back(batch);
          if (!batch->last_of_step) continue;
          rank_.run_micro_batches(std::exchange(of_step, {}), [&](const Batch& of) { return loss_of(net, of); });
        } else {
          rank_.backward(loss_of(net, *batch));
          if (!batch->last_of_step) continue;
        }
      } catch (const Error& error) {
        rank_.recover(error);
        continue;
      }
      renew_if_due(net, optimizer);
      const auto report = rank_.step(optimizer);
      if (!report.repeat && !report.pending) note_(note_of_step(report, rank_.is_main()));
    }
  }

  template <class Optimizer>
  void uneven(Net& net, Optimizer& optimizer) {
    std::vector<at::Tensor> batches;
    for (const auto& batch : uneven_batches(job_, rank_.rank())) batches.push_back(torch::tensor(batch, at::kLong));
    for (const auto& batch : rank_.uneven(batches)) {
      const std::vector<std::int64_t> indices(batch.data_ptr<std::int64_t>(),
                                              batch.data_ptr<std::int64_t>() + batch.numel());
      const auto samples = samples_at(job_, indices);
      const auto loss = loss_of(net, samples.input.to(rank_.device()), samples.target.to(rank_.device()),
                                {rank_.steps_done(), 0, {{rank_.rank(), indices.front(), batch.size(0)}}});
      rank_.backward(loss);
      renew_if_due(net, optimizer);
      const auto report = rank_.step(optimizer);
      if (!report.repeat) note_(note_of_step(report, rank_.is_main()));
    }
  }

  void framework() {
    std::unique_ptr<optim::Optimizer> theirs;
    troupe::Job job;
    job.model = [&](const Config&) { return make_net(); };
    job.data = [&](const Config&) {
      Datasets sets{sample_set(job_, 0, job_.samples), {}};
      if (job_.validate > 0) sets.held_out = held_out();
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
    job.callbacks = [&](Rank&, torch::nn::Module& net) { return callbacks(net); };
    troupe::train(job, rank_);
  }

  const Job& job_;
  Rank& rank_;
  std::int64_t stop_after_;
  const TakeNote& note_;
  at::Tensor counted_ = at::zeros({4}, at::kDouble);  // steps and the sum of their numbers; validations, after which
};

}  // namespace

void add_extensions() {
  OwingHook::add();
  register_gossip();
}

bool is_torch(const Job& job) { return job.optimizer.starts_with("torch."); }

void live(const Job& job, std::int64_t stop_after, Rank& rank, const TakeNote& note) {
  Life(job, rank, stop_after, note).run();
}

}  // namespace troupe::differential
