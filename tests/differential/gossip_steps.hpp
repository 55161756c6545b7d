#pragma once
// How replicas meet in examples/custom_strategy. Includes nothing of Troupe.
#include "tests/differential/steps_apart.hpp"

namespace troupe::differential {

/// Lian et al., "Asynchronous Decentralized Parallel Stochastic Gradient Descent", 2018, with pairs that are fixed:
/// neighbours in the ring, by turns. After a step each goes half of the way to where the other was a step before.
class GossipSteps final : public StepsApart {
 public:
  void after_step(std::int64_t done, std::vector<Replica>& replicas) override {
    torch::NoGradGuard no_grad;
    for (auto& [parameter, pull] : pulls_) {
      if (parameter.requires_grad()) parameter.detach().add_(pull.to(parameter.scalar_type()));
    }
    pulls_.clear();
    const auto ranks = replicas.size();
    for (auto r = static_cast<std::size_t>((done - 1) % 2); r < ranks; r += 2) {
      const auto next = (r + 1) % ranks;
      if (next > 0 || ranks % 2 == 0) meet(replicas[r], replicas[next]);  // an odd ring has one too many
    }
  }
  bool waits() const override { return false; }
  void interrupt() override { pulls_.clear(); }

 private:
  void meet(Replica& a, Replica& b) {
    for (std::size_t p = 0; p < a.parameters.size(); ++p) {
      const auto mine = a.parameters[p].second, theirs = b.parameters[p].second;
      if (!mine.requires_grad()) continue;
      const auto half = (theirs.detach().to(at::kDouble) - mine.detach().to(at::kDouble)) / 2;
      pulls_.emplace_back(mine, half);
      pulls_.emplace_back(theirs, -half);
    }
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> pulls_;  // a parameter, and where it will go
};

}  // namespace troupe::differential
