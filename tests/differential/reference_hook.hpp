#pragma once
// What the reference's communication hooks have in common, and the one of owing_hook.hpp. Includes nothing of Troupe.
#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace troupe::differential {

inline at::Tensor mean_of(const std::vector<at::Tensor>& of) {
  auto mean = of.front().clone();
  for (std::size_t r = 1; r < of.size(); ++r) mean += of[r];
  return mean / static_cast<double>(of.size());
}

/// All become their mean, but for one that goes.
inline void share_without(std::size_t gone, std::vector<at::Tensor>& of) {
  if (of.empty()) return;
  const auto mean = mean_of(of);
  of.erase(of.begin() + static_cast<std::ptrdiff_t>(gone));
  for (auto& one : of) one = mean.clone();
}

class ReferenceHook {
 public:
  virtual ~ReferenceHook() = default;
  /// What the ranks' gradients of a parameter become. What is left over is for the next step once `keep` is called.
  virtual at::Tensor reduce(const std::string& name, const std::vector<at::Tensor>& gradients) = 0;
  virtual void keep() = 0;     ///< the step was applied
  virtual void forget() = 0;   ///< it was not
  virtual void restart() = 0;  ///< as at the start of a run
  /// A rank was replaced, and what it owed is gone.
  virtual void lose(std::size_t) {}
  /// A rank has left, and what all owed is shared by the others.
  virtual void leave(std::size_t rank) = 0;
};

/// One that keeps a `Memory` of each parameter.
template <class Memory>
class RememberingHook : public ReferenceHook {
 public:
  void keep() override {
    for (auto& [name, memory] : begun_) kept_[name] = std::move(memory);
    begun_.clear();
  }
  void forget() override { begun_.clear(); }
  void restart() override { kept_.clear(); }

 protected:
  std::map<std::string, Memory> kept_, begun_;  // of the steps that were applied; of the one under way
};

class ReferenceOwing final : public RememberingHook<std::vector<at::Tensor>> {  // by rank
 public:
  at::Tensor reduce(const std::string& name, const std::vector<at::Tensor>& gradients) override {
    auto& owed = begun_[name];
    const auto found = kept_.find(name);
    for (std::size_t r = 0; r < gradients.size(); ++r)
      owed.push_back(found == kept_.end() ? gradients[r] : gradients[r] + found->second[r]);
    const auto sent = mean_of(owed) * 0.75;
    for (auto& of_rank : owed) of_rank = of_rank * 0.25;
    return sent;
  }
  void leave(std::size_t rank) override {
    for (auto& [name, owed] : kept_) share_without(rank, owed);
  }
  void lose(std::size_t rank) override {
    for (auto& [name, owed] : kept_) owed[rank] = at::zeros_like(owed[rank]);
  }
};

}  // namespace troupe::differential
