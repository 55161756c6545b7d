#include "tests/differential/reference.hpp"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <numbers>
#include <numeric>
#include <optional>
#include <set>

#include "tests/differential/grad_scaler_reference.hpp"
#include "tests/differential/outer_steps.hpp"
#include "tests/differential/power_sgd_reference.hpp"
#include "tests/differential/replica.hpp"
#include "tests/differential/samples.hpp"

namespace troupe::differential {
namespace {

constexpr double kLargestHalf = 65504;

/// How many ranks have samples of their own.
int data_ranks(const Job& job) {
  if (!job.strategy.starts_with("pipeline") && !job.strategy.starts_with("tensor_parallel")) return job.ranks;
  return job.strategy.find("dp=2") != std::string::npos || job.strategy.find("fsdp=2") != std::string::npos ? 2 : 1;
}

bool keeps_replicas(const std::string& strategy) { return strategy == "local_sgd" || strategy == "diloco"; }

/// LibTorch's own autocast on the CPU.
class Autocast {
 public:
  explicit Autocast(const std::string& type) : on_(type != "none") {
    if (!on_) return;
    at::autocast::set_autocast_dtype(at::kCPU, type == "fp16" ? at::kHalf : at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  ~Autocast() {
    if (!on_) return;
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool on_;
};

/// The samples of a step: by micro-batch, by rank.
using Batches = std::vector<std::vector<std::vector<std::int64_t>>>;

class Run {
 public:
  Run(const Job& job, const Order& order, double rounding) : job_(job), order_(order), rounding_(rounding) {
    replicas_.emplace_back(job);
    {
      const torch::NoGradGuard no_grad;
      for (auto& [name, parameter] : replicas_.front().parameters) disturb(parameter);
    }
    if (job.comm_hook == "powersgd") hook_ = std::make_unique<ReferencePowerSgd>(job.powersgd_rank);
    if (job.comm_hook == "owing") hook_ = std::make_unique<ReferenceOwing>();
    if (keeps_replicas(job.strategy)) train_apart(job.strategy, 0);
  }

  Outcome run() {
    phase(job_.event == "resume" ? kResumeStep : 0);
    if (job_.event == "resume") {
      resume();
      phase(0);
    }
    return std::move(outcome_);
  }

 private:
  // docs/strategies.md: replicas that differ go on from their mean, with rank 0's optimizer.
  void resume() {
    if (job_.resume_ranks > 0) {
      if (hook_ && job_.resume_ranks != job_.ranks) hook_->restart();  // what it has is by rank
      job_.ranks = job_.resume_ranks;
    }
    if (job_.resume_batch > 0) {  // at the same sample, as far as whole batches go
      in_epoch_ = in_epoch_ * job_.batch_size / job_.resume_batch;
      job_.batch_size = job_.resume_batch;
    }
    if (!job_.resume_strategy.empty()) job_.strategy = job_.resume_strategy;
    average_models_into_first(replicas_);
    replicas_.erase(replicas_.begin() + 1, replicas_.end());
    if (outer_) outer_->interrupt();
    const auto saved = std::move(outer_);
    outer_.reset();
    if (!keeps_replicas(job_.strategy)) return;
    train_apart(job_.strategy, 0);
    outer_->resume(step_, saved);
  }
  int ranks() const { return data_ranks(job_); }
  // Of a step. The one rank of a parameter server applies each before it takes its next part of the batch.
  int updates() const { return job_.strategy == "parameter_server" ? job_.staleness + 1 : 1; }
  std::int64_t per_epoch() const {
    const auto n = std::int64_t{job_.samples}, b = std::int64_t{job_.batch_size};
    return job_.drop_last ? n / b : (n + b - 1) / b;
  }

  void phase(std::int64_t until) {
    if (job_.feed == "uneven") return uneven(until);
    const auto left = epochs_ * per_epoch() - (epoch_ * per_epoch() + in_epoch_);
    auto last = step_ + left;
    if (job_.max_steps > 0) last = std::min<std::int64_t>(last, job_.max_steps);
    total_ = last;
    if (until > 0) last = std::min(last, until);
    while (step_ < last) {
      step(batches());
      if (++in_epoch_ == per_epoch()) {
        in_epoch_ = 0;
        ++epoch_;
        hold_out();
      }
    }
    if (until == 0 && in_epoch_ > 0) hold_out();
    keep_state();
  }

  void uneven(std::int64_t until) {
    total_ = job_.max_steps > 0 ? job_.max_steps : kSteps;
    auto last = std::min<std::int64_t>(total_, kSteps);
    if (until > 0) last = std::min(last, until);
    while (step_ < last) {
      Batches of_step(1);
      for (int r = 0; r < job_.ranks; ++r) {
        const auto all = uneven_batches(job_, r);
        const auto b = static_cast<std::size_t>(step_);
        of_step[0].push_back(b < all.size() ? all[b] : std::vector<std::int64_t>());
      }
      step(of_step);
    }
    keep_state();
  }

  // An epoch's last batch is cut as a whole one is.
  Batches batches() const {
    const auto begin = in_epoch_ * job_.batch_size,
               of_step = std::min<std::int64_t>(job_.batch_size, job_.samples - begin);
    const std::int64_t parts = job_.accumulate * updates(), part = job_.batch_size / parts;
    Batches all(static_cast<std::size_t>(parts));
    for (std::size_t m = 0; m < all.size(); ++m) {
      const auto number = static_cast<std::int64_t>(m);
      const auto first = begin + of_step * number / parts, last = begin + of_step * (number + 1) / parts;
      const auto place = [&](int rank) { return first + (last - first) * (part * rank / ranks()) / part; };
      for (int r = 0; r < ranks(); ++r) {
        auto& mine = all[m].emplace_back();
        for (auto p = place(r); p < place(r + 1); ++p) mine.push_back(sample(p));
      }
    }
    return all;
  }
  std::int64_t sample(std::int64_t position) const {
    const auto epoch = order_.find(epoch_);
    if (epoch != order_.end() && epoch->second.contains(position)) position = epoch->second.at(position);
    return position == job_.bad_sample ? (position + 1) % job_.samples : position;
  }

  /// The schedule's factor of each group's own rate.
  double factor() const {
    if (step_ < job_.warmup_steps) return static_cast<double>(step_ + 1) / (job_.warmup_steps + 1);
    if (job_.schedule == "cosine") {
      const auto done = static_cast<double>(step_ - job_.warmup_steps) /
                        static_cast<double>(std::max<std::int64_t>(1, total_ - job_.warmup_steps));
      return 0.5 * (1 + std::cos(std::numbers::pi * std::min(1.0, done)));
    }
    if (job_.schedule == "step") {
      const auto whole_epochs = step_ / per_epoch();
      return std::pow(0.5, static_cast<double>(whole_epochs));
    }
    return 1;
  }

  // Each rank's statistics are its own in a BatchNorm that is not synchronised, and rank 0's are kept. Its scaled
  // gradients are its own, too, when f16 may overflow.
  bool by_rank() const {
    return outer_ || sets_aside() || job_.amp == "fp16" || (job_.norm == "batch" && !job_.sync_batchnorm);
  }
  // A rank's own mean is what f16 has to hold, and what a replica trains on.
  double times() const { return outer_ || job_.amp == "fp16" ? ranks() * updates() : 1; }
  bool sets_aside() const { return (hook_ && !outer_) || (job_.comm_hook == "fp16" && scaler_.is_on() && !outer_); }

  void step(const Batches& batches) {
    std::int64_t all = 0, samples = 0;
    for (const auto& micro_batch : batches) {
      for (const auto& mine : micro_batch) {
        samples += static_cast<std::int64_t>(mine.size());
        if (!mine.empty()) all += counted(mine);
      }
    }
    StepSeen seen;
    seen.samples = static_cast<double>(samples);
    std::vector<std::vector<at::Tensor>> buffers;  // of a step that is skipped nothing stays
    for (const auto& replica : replicas_) buffers.push_back(copies_of_buffers(*replica.net));
    for (auto& replica : replicas_) {
      freeze(*replica.net, job_, step_);
      replica.optimizer->zero_grad();
    }
    std::optional<Replica> start;  // of a step of several updates
    if (updates() > 1) start.emplace(job_).copy(replicas_.front());
    const double rate = factor();
    bool finite = true;
    for (std::size_t m = 0; m < batches.size(); ++m) {
      if (m > 0 && start) {
        finite = unscale() && finite;
        clip(replicas_.front());
        replicas_.front().step(rate);
        replicas_.front().optimizer->zero_grad();
      }
      if (by_rank()) {
        for (int r = 0; r < ranks(); ++r)
          forward_backward(static_cast<int>(m), {r}, {batches[m][static_cast<std::size_t>(r)]}, all, seen);
      } else {
        std::vector<int> together(static_cast<std::size_t>(ranks()));
        std::iota(together.begin(), together.end(), 0);
        forward_backward(static_cast<int>(m), together, batches[m], all, seen);
      }
    }
    if (sets_aside()) combine(all);
    finite = unscale() && finite;
    seen.rate = (job_.optimizer.starts_with("torch.") ? replicas_.front().base.front() : rate_of(job_)) * rate;
    seen.scale = scaler_.scale();
    seen.committed = finite && std::isfinite(seen.loss) && all > 0;
    scaler_.update(!finite || !std::isfinite(seen.loss));
    for (auto& replica : replicas_) {
      for (auto& [name, parameter] : replica.parameters) disturb(parameter.mutable_grad());
      seen.norm = std::max(seen.norm, clip(replica));
    }
    for (std::size_t r = 0; r < replicas_.size(); ++r)
      seen.committed ? replicas_[r].step(rate) : put_buffers_back(*replicas_[r].net, buffers[r]);
    if (start && !seen.committed) replicas_.front().copy(*start);
    if (hook_ && !outer_) seen.committed ? hook_->keep() : hook_->forget();
    outcome_.steps[step_++] = seen;
    meet();
    switch_if_due();
    ++outcome_.between_steps;
    if (step_ % 5 == 0) keep_state();
  }

  // docs/strategies.md: a killed rank is replaced by a copy of the first that is left. No committed step is run twice;
  // an outer step that was interrupted comes after the next step.
  void meet() {
    const auto& at = job_.kill_at;
    const bool voted = at == "voted" || at == "committed" || at == "optimizer", meeting = outer_ && at == "collective";
    const bool dies = kills(job_) && step_ == kChangeStep + (voted ? 1 : 0) && (!meeting || outer_->is_due(step_));
    if (outer_ && !(dies && (voted || meeting))) outer_->after_step(step_, replicas_);
    if (!dies) return;
    if (hook_) hook_->lose(static_cast<std::size_t>(job_.ranks - 1));
    if (outer_) {
      outer_->interrupt();
      replicas_.pop_back();
    }
    if (job_.event == "lose") {
      --job_.ranks;
    } else if (outer_) {
      replicas_.emplace_back(job_).copy(replicas_.front());
    }
  }

  void train_apart(const std::string& strategy, std::int64_t begun) {
    while (static_cast<int>(replicas_.size()) < job_.ranks) {
      replicas_.emplace_back(job_).copy(replicas_.front());
    }
    outer_.emplace(job_, strategy, replicas_.front(), begun, hook_.get());
  }

  // Where ranks have trained apart all become their mean.
  void switch_if_due() {
    const auto colon = job_.switch_at.find(':');
    if (colon == std::string::npos || step_ != std::stoll(job_.switch_at)) return;
    if (outer_) outer_->end(replicas_);
    hook_.reset();  // a switch says no hook
    job_.comm_hook = "none";
    if (outer_) {
      average_models_into_first(replicas_);
      average_optimizers_into_first(replicas_);
      replicas_.erase(replicas_.begin() + 1, replicas_.end());
      outer_.reset();
    }
    job_.strategy = job_.switch_at.substr(colon + 1);  // with which a resumed run goes on
    if (keeps_replicas(job_.strategy)) train_apart(job_.strategy, step_);
  }

  // The gradients of micro-batch and rank, kept apart for what travels between ranks.
  void set_aside(int rank) {
    auto& parameters = replicas_.front().parameters;
    of_ranks_.resize(parameters.size());
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      auto& gradient = parameters[p].second.mutable_grad();
      if (!gradient.defined()) continue;
      auto& of_ranks = of_ranks_[p];
      while (static_cast<int>(of_ranks.size()) < job_.ranks)
        of_ranks.push_back(at::zeros_like(parameters[p].second.detach()));
      of_ranks[static_cast<std::size_t>(rank)] += gradient;
      gradient.reset();
    }
  }
  // With sums what a hook owes is in units of sums, too.
  void combine(std::int64_t all) {
    const double unit = job_.loss == "masked" ? static_cast<double>(std::max<std::int64_t>(1, all)) : 1;
    auto& parameters = replicas_.front().parameters;
    for (std::size_t p = 0; p < of_ranks_.size(); ++p) {
      auto& of_ranks = of_ranks_[p];
      if (of_ranks.empty()) continue;
      auto& [name, parameter] = parameters[p];
      auto& mean = parameter.mutable_grad();
      if (hook_) {
        for (auto& gradient : of_ranks) gradient *= unit * job_.ranks;
        mean = hook_->reduce(name, of_ranks).to(parameter.scalar_type()) / unit;
      } else {
        const auto own = parameter.scalar_type(), wire = parameter.element_size() > 2 ? at::kHalf : own;
        auto sum = at::zeros_like(of_ranks.front());
        for (const auto& gradient : of_ranks) sum += (gradient / times()).to(wire);
        mean = sum.to(wire).to(own) * times();
      }
    }
    of_ranks_.clear();
  }

  // As if it had been rounded to few bits.
  void disturb(at::Tensor tensor) {
    if (rounding_ == 0 || !tensor.defined() || tensor.is_sparse()) return;
    tensor.mul_(1 + rounding_ * (2 * at::rand(tensor.sizes(), noise_, tensor.options().requires_grad(false)) - 1));
  }

  std::int64_t counted(const std::vector<std::int64_t>& indices) const {
    return samples_at(job_, indices).target.ne(-100).sum().item<std::int64_t>();
  }

  void forward_backward(int micro_batch, const std::vector<int>& ranks,
                        const std::vector<std::vector<std::int64_t>>& of_ranks, std::int64_t all, StepSeen& seen) {
    Place place{step_, micro_batch, {}};
    std::vector<std::int64_t> indices;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (of_ranks[i].empty()) continue;
      place.parts.push_back({ranks[i], of_ranks[i].front(), static_cast<std::int64_t>(of_ranks[i].size())});
      indices.insert(indices.end(), of_ranks[i].begin(), of_ranks[i].end());
    }
    if (indices.empty()) return;
    auto& replica = replicas_[outer_ ? static_cast<std::size_t>(ranks.front()) : 0];
    move_reference_dropout(*replica.net, place);
    const auto buffers = copies_of_buffers(*replica.net);
    const auto batch = samples_at(job_, indices);
    at::Tensor output;
    LossParts loss;
    {
      const Autocast autocast(job_.amp);
      output = replica.net->forward(batch.input, place);
      loss = loss_parts(job_, output, batch.target);
    }
    seen.type = c10::toString(output.scalar_type());
    auto value = loss.sum / static_cast<double>(std::max<std::int64_t>(1, all));
    if (job_.event == "infinite" && step_ == kChangeStep && place.parts.front().rank == 0)
      value = value * std::numeric_limits<double>::infinity();
    seen.loss += value.item<double>();
    seen.correct += static_cast<double>(loss.correct);
    if (value.requires_grad()) (value * (times() * scaler_.scale() * nudge())).backward();
    if (sets_aside()) set_aside(ranks.front());
    if (ranks.front() != 0 && !outer_) put_buffers_back(*replica.net, buffers);
  }

  static std::vector<at::Tensor> copies_of_buffers(const ReferenceNet& net) {
    std::vector<at::Tensor> copies;
    for (const auto& buffer : net.buffers()) copies.push_back(buffer.clone());
    return copies;
  }
  static void put_buffers_back(const ReferenceNet& net, const std::vector<at::Tensor>& copies) {
    torch::NoGradGuard no_grad;
    auto now = net.buffers();
    for (std::size_t b = 0; b < copies.size(); ++b) now[b].copy_(copies[b]);
  }

  // With `rounding`: what is within a part in 500 of f16's largest value may be beyond it, or not.
  double nudge() const { return job_.amp != "fp16" || rounding_ == 0 ? 1 : rounding_ > 0 ? 1 - 0.002 : 1 + 0.002; }
  // False: a gradient is not finite, or is more than travels.
  bool unscale() {
    const bool travels = job_.comm_hook == "fp16" && !outer_ && !sets_aside();
    const auto most = travels ? kLargestHalf : std::numeric_limits<double>::max();
    bool finite = true;
    for (auto& replica : replicas_) {
      for (auto& [name, parameter] : replica.parameters) {
        auto& gradient = parameter.mutable_grad();
        if (!gradient.defined() || parameter.numel() == 0) continue;
        finite = finite && gradient.abs().max().item<double>() <= most;
        gradient.div_(scaler_.scale() * nudge() * (outer_ ? 1 : times()) / updates());
      }
    }
    return finite;
  }

  double clip(Replica& replica) const {
    if (job_.clip_norm == 0) return 0;
    double squares = 0;
    for (const auto& [name, parameter] : replica.parameters) {
      if (parameter.grad().defined()) squares += parameter.grad().to(at::kDouble).pow(2).sum().item<double>();
    }
    const double norm = std::sqrt(squares);
    if (norm + 1e-6 > job_.clip_norm) {
      for (const auto& [name, parameter] : replica.parameters) {
        if (parameter.grad().defined()) parameter.mutable_grad().mul_(job_.clip_norm / (norm + 1e-6));
      }
    }
    return norm;
  }

  // Of the epoch's end, with the model in eval mode. Each replica has an equal part of the samples.
  void hold_out() {
    if (job_.validate == 0) return;
    torch::NoGradGuard no_grad;
    double sum = 0;
    std::int64_t count = 0;
    const auto replicas = static_cast<int>(replicas_.size());
    for (int r = 0; r < replicas; ++r) {
      std::vector<std::int64_t> indices;
      for (int i = job_.validate * r / replicas; i < job_.validate * (r + 1) / replicas; ++i) {
        if (i != job_.bad_sample) indices.push_back(kHeldOut + i);
      }
      if (indices.empty()) continue;
      const auto batch = samples_at(job_, indices);
      auto& net = *replicas_[static_cast<std::size_t>(r)].net;
      net.eval();
      const Autocast autocast(job_.amp);
      const auto loss = loss_parts(
          job_, net.forward(batch.input, Place{step_, 0, {{r, indices.front(), batch.input.size(0)}}}), batch.target);
      net.train();
      sum += loss.sum.item<double>();
      count += loss.count;
    }
    outcome_.held_out_loss = sum / static_cast<double>(std::max<std::int64_t>(1, count));
  }

  void keep_state() {
    auto& state = outcome_.states[step_];
    const auto& first = replicas_.front();
    for (std::size_t p = 0; p < first.parameters.size(); ++p) {
      auto mean = first.parameters[p].second.detach().clone();
      for (std::size_t r = 1; r < replicas_.size(); ++r) mean += replicas_[r].parameters[p].second.detach();
      if (replicas_.size() > 1) mean /= static_cast<double>(replicas_.size());
      state["model." + first.parameters[p].first] = mean;
      auto* of = first.state_of(p);
      if (of == nullptr) continue;
      const auto name = "optimizer." + first.parameters[p].first + ".";
      for (const auto& [slot, tensor] : slots_of(*of)) state[name + slot] = tensor->clone();
      if (const auto steps = step_of(*of)) state[name + "step"] = torch::tensor(static_cast<float>(*steps));
    }
    std::set<const void*> seen;
    for (const auto& item : first.net->named_buffers()) {
      if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
      auto value = item.value().clone();
      for (std::size_t r = 1; r < replicas_.size() && value.is_floating_point(); ++r)
        value += replicas_[r].net->named_buffers()[item.key()];
      if (value.is_floating_point()) value /= static_cast<double>(replicas_.size());
      state["model." + item.key()] = value;
    }
  }

  Job job_;
  const std::int64_t epochs_ = epochs_of(job_);
  const Order& order_;
  const double rounding_;
  at::Generator noise_ = at::detail::createCPUGenerator(1);
  std::vector<Replica> replicas_;
  std::optional<OuterSteps> outer_;
  std::unique_ptr<ReferenceHook> hook_;
  ReferenceGradScaler scaler_{job_};
  std::vector<std::vector<at::Tensor>> of_ranks_;  // gradients set aside, by parameter and rank
  Outcome outcome_;
  std::int64_t step_ = 0, epoch_ = 0, in_epoch_ = 0, total_ = 0;
};

}  // namespace

Outcome reference(const Job& job, const Order& order, double rounding) { return Run(job, order, rounding).run(); }

}  // namespace troupe::differential
