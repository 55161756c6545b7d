#pragma once
// The outer optimizer of local_sgd and diloco. Includes nothing of Troupe.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "tests/differential/reference_hook.hpp"
#include "tests/differential/steps_apart.hpp"

namespace troupe::differential {

/// Douillard et al., "DiLoCo", 2023: every `sync_every` steps the mean change is a gradient to SGD with Nesterov
/// momentum. With rate 1 and no momentum it is local_sgd (Stich, 2019). In fragments, overlapped and mixed: Douillard
/// et al., "Streaming DiLoCo with overlapping communication", 2025.
class OuterSteps final : public StepsApart {
 public:
  /// `begun`: the step that these begin with; `hook`: through which changes travel, or nothing.
  OuterSteps(const Job& job, const std::string& strategy, const Replica& first, std::int64_t begun, ReferenceHook* hook)
      : every_(job.sync_every), broadcasts_(job.broadcast_buffers), hook_(hook) {
    std::int64_t fragments = 1;
    if (strategy == "diloco") {
      rate_ = 0.7;
      momentum_ = job.outer_momentum;
      overlap_ = job.overlap;
      fragments = job.fragments;
    }
    const auto elements = [&](const at::Tensor& parameter) {  // that are cut
      return is_left_out(job, parameter) ? 0 : parameter.numel();
    };
    std::int64_t total = 0, before = 0;
    for (const auto& [name, parameter] : first.parameters) total += elements(parameter);
    next_.resize(static_cast<std::size_t>(fragments));
    for (std::int64_t f = 0; f < fragments; ++f)
      next_[static_cast<std::size_t>(f)] = begun + every_ * (f + 1) / fragments;
    for (const auto& [name, parameter] : first.parameters) {  // a parameter is in the fragment where its middle lies
      const auto fragment = (2 * before + elements(parameter)) * fragments / (2 * total);
      before += elements(parameter);
      fragment_.push_back(is_left_out(job, parameter) ? next_.size()
                                                      : static_cast<std::size_t>(std::min(fragment, fragments - 1)));
      outer_.push_back(parameter.detach().clone());
      velocity_.push_back(at::zeros_like(outer_.back()));
    }
  }

  /// docs/strategies.md: a checkpoint has outer parameters, momentum and when fragments meet, but nothing that is under
  /// way. What these settings ask for and `saved` lacks begins anew, and fragments meet as if it had been so from the
  /// run's beginning.
  void resume(std::int64_t done, const StepsApart* of) override {
    const auto* saved = dynamic_cast<const OuterSteps*>(of);
    if (saved != nullptr && saved->next_.size() == next_.size()) {
      next_ = saved->next_;
    } else {
      for (auto& next : next_) {
        while (next <= done) next += every_;
      }
    }
    if (saved == nullptr || (momentum_ > 0 && saved->momentum_ == 0)) return;
    outer_ = saved->outer_;
    velocity_ = saved->velocity_;
  }

  void after_step(std::int64_t done, std::vector<Replica>& replicas) override {
    torch::NoGradGuard no_grad;
    if (under_way_ && done >= since_ + overlap_) finish(replicas);
    for (std::size_t f = 0; f < next_.size() && !under_way_; ++f) {
      if (next_[f] > done) continue;
      start(f, done, replicas);
      if (overlap_ == 0) finish(replicas);
    }
  }

  bool is_due(std::int64_t done) const override {
    return std::any_of(next_.begin(), next_.end(), [done](auto next) { return next <= done; });
  }
  /// What is under way is lost, and begins anew.
  void interrupt() override {
    under_way_.reset();
    if (hook_ != nullptr) hook_->forget();
  }

  /// What is under way is taken now.
  void end(std::vector<Replica>& replicas) override {
    torch::NoGradGuard no_grad;
    if (under_way_) finish(replicas);
  }

 private:
  // Was frozen from the beginning: what the program does to it is each rank's own.
  static bool is_left_out(const Job& job, const at::Tensor& parameter) {
    return job.frozen == "always" && !parameter.requires_grad();
  }
  void start(std::size_t fragment, std::int64_t done, const std::vector<Replica>& replicas) {
    under_way_ = fragment;
    since_ = done;
    change_.clear();
    for (std::size_t p = 0; p < outer_.size(); ++p) {
      std::vector<at::Tensor> changes;
      for (const auto& replica : replicas) changes.push_back(outer_[p] - replica.parameters[p].second);
      if (hook_ != nullptr && fragment_[p] == fragment) {
        change_.push_back(hook_->reduce(replicas.front().parameters[p].first, changes));
      } else {
        change_.push_back(mean_of(changes));
      }
    }
  }
  void finish(std::vector<Replica>& replicas) {
    for (std::size_t p = 0; p < outer_.size(); ++p) {
      if (fragment_[p] != *under_way_) continue;
      velocity_[p] = momentum_ * velocity_[p] + change_[p];
      outer_[p] -= rate_ * (change_[p] + momentum_ * velocity_[p]);
      const double kept = overlap_ > 0 ? kMixing : 0;
      for (auto& replica : replicas) {
        auto parameter = replica.parameters[p].second;
        parameter.copy_(kept * parameter + (1 - kept) * outer_[p]);
      }
    }
    for (std::size_t r = 1; r < replicas.size() && broadcasts_; ++r) replicas[r].copy_buffers(*replicas[0].net);
    while (next_[*under_way_] <= since_) next_[*under_way_] += every_;
    if (hook_ != nullptr) hook_->keep();
    under_way_.reset();
  }

  const std::int64_t every_;
  const bool broadcasts_;
  ReferenceHook* const hook_;
  double rate_ = 1, momentum_ = 0;
  std::int64_t overlap_ = 0, since_ = 0;
  std::vector<std::int64_t> next_;  // by fragment
  std::vector<std::size_t> fragment_;
  std::vector<at::Tensor> outer_, velocity_, change_;
  std::optional<std::size_t> under_way_;
};

}  // namespace troupe::differential
