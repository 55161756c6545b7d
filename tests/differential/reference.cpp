#include "tests/differential/reference.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <numbers>
#include <numeric>
#include <optional>

#include "tests/differential/autocast_reference.hpp"
#include "tests/differential/gossip_steps.hpp"
#include "tests/differential/grad_scaler_reference.hpp"
#include "tests/differential/outer_steps.hpp"
#include "tests/differential/power_sgd_reference.hpp"
#include "tests/differential/reference_data.hpp"
#include "tests/differential/replica.hpp"

namespace troupe::differential {
namespace {

constexpr double kLargestHalf = 65504;

class PlainRun {
 public:
  PlainRun(const Job& job, const Order& order, double rounding, std::uint64_t noise)
      : job_(job), data_(job_, order), rounding_(rounding), noise_(at::detail::createCPUGenerator(noise)) {
    replicas_.emplace_back(job);
    disturb_parameters(replicas_.front());
    if (job.comm_hook == "powersgd") hook_ = std::make_unique<ReferencePowerSgd>(job.powersgd_rank);
    if (job.comm_hook == "owing") hook_ = std::make_unique<ReferenceOwing>();
    if (trains_apart(job.strategy)) train_apart(job.strategy, 0);
  }

  Outcome run() {
    if (dies_now() && !(outer_ && job_.kill_at == "collective")) lose_rank();
    phase(job_.event == "resume" ? kResumeStep : 0);
    if (job_.event == "resume") {
      resume();
      if (cut_off_) hold_out();
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
    if (job_.resume_batch > 0) {
      data_.change_batch(job_.batch_size, job_.resume_batch);
      job_.batch_size = job_.resume_batch;
    }
    if (!job_.resume_strategy.empty()) job_.strategy = job_.resume_strategy;
    average_models_into_first(replicas_);
    replicas_.erase(replicas_.begin() + 1, replicas_.end());
    if (outer_) outer_->interrupt();
    const auto saved = std::move(outer_);
    outer_.reset();
    if (!trains_apart(job_.strategy)) return;
    train_apart(job_.strategy, 0);
    outer_->resume(step_, saved.get());
  }

  void phase(std::int64_t until) {
    total_ = job_.feed == "uneven" ? kSteps : step_ + data_.steps_left();
    if (job_.max_steps > 0) total_ = std::min<std::int64_t>(total_, job_.max_steps);
    const auto last = until > 0 ? std::min(total_, until) : total_;
    while (step_ < last) {
      step(data_.of_step(step_));
      if (!data_.step_done()) continue;
      cut_off_ = step_ == until;  // docs/checkpoints.md: the run that goes on does it
      if (!cut_off_) hold_out();
    }
    if (until == 0 && data_.is_within_epoch()) hold_out();
    keep_state();
  }

  /// The schedule's factor of each group's own rate.
  double factor() const {
    if (step_ < job_.warmup_steps) return static_cast<double>(step_ + 1) / (job_.warmup_steps + 1);
    if (job_.schedule == "cosine" || job_.schedule == "floor") {
      const auto done = static_cast<double>(step_ - job_.warmup_steps) /
                        static_cast<double>(std::max<std::int64_t>(1, total_ - job_.warmup_steps));
      const double least = job_.schedule == "floor" ? 0.2 : 0;
      return least + (1 - least) * 0.5 * (1 + std::cos(std::numbers::pi * std::min(1.0, done)));
    }
    if (job_.schedule == "step") {
      const auto whole_epochs = step_ / data_.per_epoch();
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
  double times() const { return outer_ || job_.amp == "fp16" ? data_.ranks() * data_.updates() : 1; }
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
    for (const auto& replica : replicas_) buffers.push_back(replica.copies_of_buffers());
    for (auto& replica : replicas_) {
      freeze(*replica.net, job_, step_);
      replica.optimizer->zero_grad();
      if (job_.renewed && step_ == kChangeStep) renew(*replica.optimizer, *torch_optimizer(job_, replica.parameters));
    }
    std::optional<Replica> start;  // of a step of several updates
    if (data_.updates() > 1) start.emplace(job_).copy(replicas_.front());
    const double rate = factor();
    bool finite = true;
    for (std::size_t m = 0; m < batches.size(); ++m) {
      if (m > 0 && start) {
        finite = unscale() && finite;
        replicas_.front().clip(job_.clip_norm);
        replicas_.front().step(rate);
        replicas_.front().optimizer->zero_grad();
      }
      if (by_rank()) {
        for (int r = 0; r < data_.ranks(); ++r)
          forward_backward(static_cast<int>(m), {r}, {batches[m][static_cast<std::size_t>(r)]}, all, seen);
      } else {
        std::vector<int> together(static_cast<std::size_t>(data_.ranks()));
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
      disturb_gradients(replica);
      seen.norm = std::max(seen.norm, replica.clip(job_.clip_norm));
    }
    for (std::size_t r = 0; r < replicas_.size(); ++r) {
      seen.committed ? replicas_[r].step(rate) : replicas_[r].put_buffers_back(buffers[r]);
      if (seen.committed) disturb_parameters(replicas_[r]);
      if (seen.committed && job_.touched) touch(replicas_[r].parameters);
    }
    if (start && !seen.committed) replicas_.front().copy(*start);
    if (hook_ && !outer_) seen.committed ? hook_->keep() : hook_->forget();
    outcome_.steps[step_++] = seen;
    meet();
    switch_if_due();
    if (job_.event == "leave" && step_ == hurt_step_of(job_) + 1) leave();
    ++outcome_.between_steps;
    if (step_ % 5 == 0) keep_state();
  }

  // docs/strategies.md: a killed rank is replaced by a copy of the first that is left. No committed step is run twice;
  // an outer step that was interrupted is taken by those who are there then.
  void meet() {
    const bool meeting = outer_ && job_.kill_at == "collective";
    const bool dies = dies_now() && (!meeting || outer_->is_due(step_));
    const bool within = dies_voted() || meeting || job_.dies_early;
    if (outer_ && !(dies && within && outer_->waits())) outer_->after_step(step_, replicas_);
    if (!dies) return;
    lose_rank();
    if (outer_ && outer_->waits()) outer_->after_step(step_, replicas_);
  }
  // Behind the vote, so that the step counts.
  bool dies_voted() const {
    return job_.kill_at == "voted" || job_.kill_at == "committed" || job_.kill_at == "optimizer";
  }
  // Behind the last save (`end`) there is nothing left to change.
  bool dies_now() const {
    return kills(job_) && job_.kill_at != "end" && step_ == hurt_step_of(job_) + (dies_voted() ? 1 : 0);
  }

  void lose_rank() {
    const auto lost = hurt_rank_of(job_);
    if (hook_) hook_->lose(static_cast<std::size_t>(lost));
    if (outer_) {
      outer_->interrupt();
      replicas_.erase(replicas_.begin() + lost);
    }
    if (job_.event == "lose") {
      --job_.ranks;
    } else if (outer_) {
      Replica newcomer(job_);
      newcomer.copy(replicas_.front());
      replicas_.insert(replicas_.begin() + lost, std::move(newcomer));
    }
  }

  // docs/strategies.md: what a rank that leaves has is shared by the others.
  void leave() {
    const auto leaving = hurt_rank_of(job_);
    if (outer_) outer_->end(replicas_);  // before what is owed is shared
    if (hook_) hook_->leave(static_cast<std::size_t>(leaving));
    if (outer_) {
      average_models_into_first(replicas_);
      for (std::size_t r = 1; r < replicas_.size(); ++r) replicas_[r].take_model(replicas_.front());
      replicas_.erase(replicas_.begin() + leaving);
    }
    --job_.ranks;
  }

  void train_apart(const std::string& strategy, std::int64_t begun) {
    while (static_cast<int>(replicas_.size()) < job_.ranks) {
      replicas_.emplace_back(job_).copy(replicas_.front());
    }
    if (strategy == "gossip")
      outer_ = std::make_unique<GossipSteps>();
    else
      outer_ = std::make_unique<OuterSteps>(job_, strategy, replicas_.front(), begun, hook_.get());
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
    if (trains_apart(job_.strategy)) train_apart(job_.strategy, step_);
  }

  // With sums what a hook owes is in units of sums, too.
  void combine(std::int64_t all) {
    const double unit = job_.loss == "masked" ? static_cast<double>(std::max<std::int64_t>(1, all)) : 1;
    apart_.give_back(replicas_.front(), [&](const auto& name, const at::Tensor& parameter, auto& of_ranks) {
      if (hook_) {
        for (auto& gradient : of_ranks) disturb(gradient *= unit * job_.ranks);
        return hook_->reduce(name, of_ranks).to(parameter.scalar_type()) / unit;
      }
      const auto own = parameter.scalar_type(), wire = parameter.element_size() > 2 ? at::kHalf : own;
      auto sum = at::zeros_like(of_ranks.front());
      for (const auto& gradient : of_ranks) sum += (gradient / times()).to(wire);
      return sum.to(wire).to(own) * times();
    });
  }

  // As if it were the sum of terms as large as `most` that had been rounded to few bits. Nothing is exact but 0.
  void disturb(at::Tensor tensor, double most) {
    if (rounding_ == 0 || !tensor.defined() || tensor.is_sparse()) return;
    const auto noise = 2 * at::rand(tensor.sizes(), noise_, tensor.options().requires_grad(false)) - 1;
    tensor.add_(noise * (tensor != 0), rounding_ * most);
  }
  void disturb(const at::Tensor& tensor) { disturb(tensor, largest(tensor)); }
  // An update rounds what it has added up.
  void disturb_parameters(Replica& replica) {
    const torch::NoGradGuard no_grad;
    for (auto& [name, parameter] : replica.parameters) {
      if (parameter.requires_grad()) disturb(parameter);
    }
  }
  // A layer's may cancel where a layer behind it takes the mean away.
  void disturb_gradients(Replica& replica) {
    double most = 0;
    for (const auto& [name, parameter] : replica.parameters) most = std::max(most, largest(parameter.grad()));
    for (auto& [name, parameter] : replica.parameters) disturb(parameter.mutable_grad(), most);
  }
  // 0 where there is none, or where it is not finite.
  static double largest(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.is_sparse() || tensor.numel() == 0) return 0;
    const auto most = tensor.detach().abs().max().item<double>();
    return std::isfinite(most) ? most : 0;
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
    const auto buffers = replica.copies_of_buffers();
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
    seen.correct += static_cast<double>(loss.correct());
    if (value.requires_grad()) (value * (times() * scaler_.scale() * nudge())).backward();
    if (sets_aside()) apart_.take(replica, ranks.front(), job_.ranks);
    if (ranks.front() != 0 && !outer_) replica.put_buffers_back(buffers);
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
        gradient.div_(scaler_.scale() * nudge() * (outer_ ? 1 : times()) / data_.updates());
      }
    }
    return finite;
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
      count += loss.count();
    }
    outcome_.held_out[step_] = sum / static_cast<double>(std::max<std::int64_t>(1, count));
  }

  void keep_state() { outcome_.states[step_] = state_of(replicas_); }

  Job job_;
  ReferenceData data_;
  const double rounding_;
  at::Generator noise_;
  std::vector<Replica> replicas_;
  std::unique_ptr<StepsApart> outer_;
  std::unique_ptr<ReferenceHook> hook_;
  ReferenceGradScaler scaler_{job_};
  GradientsApart apart_;
  Outcome outcome_;
  std::int64_t step_ = 0, total_ = 0;
  bool cut_off_ = false;  // a validation, by the end of the run that is resumed
};

}  // namespace

Outcome reference(const Job& job, const Order& order, double rounding, std::uint64_t noise) {
  return PlainRun(job, order, rounding, noise).run();
}

}  // namespace troupe::differential
