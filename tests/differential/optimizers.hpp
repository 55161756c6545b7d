#pragma once
// The torch::optim optimizer that a job describes. Includes nothing of Troupe.
#include <torch/torch.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/differential/job.hpp"
#include "tests/differential/net.hpp"

namespace troupe::differential {

namespace optim = torch::optim;

template <class Options>
std::unique_ptr<optim::OptimizerOptions> with(Options options, double weight_decay) {
  options.weight_decay(weight_decay);
  return std::make_unique<Options>(options);
}

inline std::unique_ptr<optim::OptimizerOptions> rule_of(const Job& job, double rate, double decay) {
  const bool momentum = job.rule != "plain", other = job.rule == "other";
  if (job.optimizer == "sgd" || job.optimizer == "torch.SGD")
    return with(optim::SGDOptions(rate).momentum(momentum ? 0.9 : 0).nesterov(other), decay);
  if (job.optimizer == "adamw") return with(optim::AdamWOptions(rate).eps(kEps), decay);
  if (job.optimizer == "torch.Adam") return with(optim::AdamOptions(rate).eps(kEps).amsgrad(other), decay);
  if (job.optimizer == "torch.AdamW") return with(optim::AdamWOptions(rate).eps(kEps).amsgrad(other), decay);
  if (job.optimizer == "torch.RMSprop")
    return with(optim::RMSpropOptions(rate).eps(kEps).momentum(job.rule == "momentum" ? 0.9 : 0).centered(other),
                decay);
  return with(optim::AdagradOptions(rate).eps(kEps).lr_decay(other ? 0.1 : 0), decay);
}

inline std::unique_ptr<optim::Optimizer> optimizer_of(const Job& job, std::vector<optim::OptimizerParamGroup> groups) {
  const auto own = job.optimizer.substr(job.optimizer.find('.') + 1);
  if (own == "sgd" || own == "SGD")
    return std::make_unique<optim::SGD>(std::move(groups), optim::SGDOptions(rate_of(job)));
  if (own == "Adam") return std::make_unique<optim::Adam>(std::move(groups));
  if (own == "RMSprop") return std::make_unique<optim::RMSprop>(std::move(groups));
  if (own == "Adagrad") return std::make_unique<optim::Adagrad>(std::move(groups));
  return std::make_unique<optim::AdamW>(std::move(groups));
}

/// Of a parameter of the net, by its name.
inline bool is_undecayed(const Job& job, const std::string& name) {
  if (job.no_decay == "norms") return name.find("norm.") != std::string::npos;
  return job.no_decay == "*.bias" && name.ends_with(".bias");
}

/// As if `fresh` had been made where `optimizer` lies.
inline void renew(optim::Optimizer& optimizer, optim::Optimizer& fresh) {
  optimizer.param_groups().swap(fresh.param_groups());
  optimizer.state() = std::move(fresh.state());
}

/// In its groups, each with its own rate. Ours (sgd, adamw) are what LibTorch has under these names.
inline std::unique_ptr<optim::Optimizer> torch_optimizer(
    const Job& job, const std::vector<std::pair<std::string, at::Tensor>>& parameters) {
  std::vector<at::Tensor> members[2];
  for (const auto& [name, parameter] : parameters) {
    const bool second = job.groups != "one" ? in_second_group(name) : is_undecayed(job, name);
    members[second ? 1 : 0].push_back(parameter);
  }
  std::vector<optim::OptimizerParamGroup> groups;
  groups.emplace_back(members[0], rule_of(job, job.groups == "zero" ? 0 : rate_of(job), job.weight_decay));
  if (!job.no_decay.empty()) groups.emplace_back(members[1], rule_of(job, rate_of(job), 0));
  if (job.groups != "one")
    groups.emplace_back(members[1], rule_of(job, job.groups == "rates" ? rate_of(job) / 2 : rate_of(job),
                                            job.groups == "decay" ? 0 : job.weight_decay));
  return optimizer_of(job, std::move(groups));
}

}  // namespace troupe::differential
