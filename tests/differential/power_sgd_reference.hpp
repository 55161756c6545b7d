#pragma once
// Vogels, Karimireddy and Jaggi, "PowerSGD", NeurIPS 2019, algorithm 1 with error feedback and warm start. Includes
// nothing of Troupe.
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/differential/reference_hook.hpp"

namespace troupe::differential {

struct PowerSgdHistory {
  at::Tensor q;                    // (rank, columns)
  std::vector<at::Tensor> errors;  // by rank, (rows, columns)
};

class ReferencePowerSgd final : public RememberingHook<PowerSgdHistory> {
 public:
  explicit ReferencePowerSgd(std::int64_t rank) : rank_(rank) {}

  /// f32 between ranks.
  at::Tensor reduce(const std::string& name, const std::vector<at::Tensor>& gradients) override {
    const auto mean = mean_of(gradients);
    const auto rows = mean.dim() < 2 || mean.numel() == 0 ? 0 : mean.size(0),
               columns = rows == 0 ? 0 : mean.numel() / rows;
    const auto rank = std::min({rank_, rows, columns});
    if ((rows + columns) * rank >= rows * columns) return mean;
    if (std::all_of(gradients.begin(), gradients.end(),
                    [](const auto& g) { return g.eq(0).all().template item<bool>(); }))
      return mean;  // what is owed waits for a step that uses the parameter
    const auto found = kept_.find(name);
    auto& now = begun_[name];
    const auto first = first_q(name, rank, columns);
    now = found != kept_.end() ? found->second : PowerSgdHistory{first, {}};
    for (std::int64_t k = 0; k < rank; ++k) {
      if (now.q[k].eq(0).all().item<bool>()) now.q[k].copy_(first[k]);
    }
    std::vector<at::Tensor> owed;  // with what earlier steps left out
    for (std::size_t r = 0; r < gradients.size(); ++r) {
      owed.push_back(in_memory_order(gradients[r]).view({rows, columns}).to(at::kFloat));
      if (!now.errors.empty()) owed.back() = owed.back() + now.errors[r];
    }
    const auto p = orthonormal(mean_of(owed).matmul(now.q.t()));
    now.q = p.t().matmul(mean_of(owed));
    const auto approximation = p.matmul(now.q);
    now.errors.clear();
    for (const auto& gradient : owed) now.errors.push_back(gradient - approximation);
    auto result = at::empty_like(mean);
    result.as_strided({mean.numel()}, {1}).copy_(approximation.reshape({-1}));
    return result;
  }

  void leave(std::size_t rank) override {
    for (auto& [name, history] : kept_) share_without(rank, history.errors);
  }

 private:
  static at::Tensor in_memory_order(const at::Tensor& tensor) { return tensor.as_strided({tensor.numel()}, {1}); }
  /// Gram and Schmidt, in f64.
  static at::Tensor orthonormal(const at::Tensor& p) {
    auto columns = p.to(at::kDouble).t().contiguous();
    for (std::int64_t k = 0; k < columns.size(0); ++k) {
      auto column = columns[k];
      const double before = column.dot(column).item<double>();
      for (std::int64_t other = 0; other < k; ++other) column -= column.dot(columns[other]) * columns[other];
      const double after = column.dot(column).item<double>();
      column *= after > 1e-12 * before && after > 0 ? 1 / std::sqrt(after) : 0;
    }
    return columns.t().to(at::kFloat);
  }
  /// By the formula of docs/strategies.md: FNV-1a of the name, SplitMix64 of place and name, 24 bits.
  static at::Tensor first_q(const std::string& name, std::int64_t rank, std::int64_t columns) {
    const auto mix = [](std::uint64_t x) {
      x += 0x9e3779b97f4a7c15ULL;
      x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
      x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
      return x ^ (x >> 31);
    };
    std::uint64_t hash = 1469598103934665603ULL;
    for (const unsigned char c : name) hash = (hash ^ c) * 1099511628211ULL;
    std::vector<float> values;
    for (std::int64_t i = 0; i < rank * columns; ++i)
      values.push_back(static_cast<float>(
          static_cast<double>(mix(hash ^ mix(static_cast<std::uint64_t>(i))) >> 40) * 0x1p-23 - 1 + 0x1p-24));
    return torch::tensor(values).view({rank, columns});
  }

  const std::int64_t rank_;
};

}  // namespace troupe::differential
