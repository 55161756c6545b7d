#pragma once
// The data of a drawn job, by formulas: sample i is the same wherever it is made.
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/differential/job.hpp"

namespace troupe::differential {

inline at::ScalarType dtype_of(const Job& job) {
  return job.dtype == "float64" || job.exact ? at::kDouble : at::kFloat;
}

/// Sample i: mlp (kWidth,), conv (1, 4, 4), tokens (kLength,) i64, in which word 0 is padding.
inline at::Tensor input_of(const Job& job, std::int64_t i) {
  if (job.model == "tokens") {
    std::vector<std::int64_t> words(kLength);
    for (std::int64_t t = 0; t < kLength; ++t)
      words[static_cast<std::size_t>(t)] = (i * 5 + t * t * 3 + i * t) % kWords;
    return torch::tensor(words, at::kLong);
  }
  const std::int64_t size = job.model == "conv" ? 16 : kWidth;
  std::vector<double> values(static_cast<std::size_t>(size));
  for (std::int64_t j = 0; j < size; ++j)
    values[static_cast<std::size_t>(j)] =
        std::sin(0.9 * static_cast<double>(i) + 1.3 * static_cast<double>(j) * (1 + static_cast<double>(i % 3)));
  auto input = torch::tensor(values, at::kDouble).to(dtype_of(job));
  return job.model == "conv" ? input.view({1, 4, 4}) : input;
}

/// Its label, () i64; tokens: one for each, (kLength,). With a masked loss some are -100, which does not count.
inline at::Tensor target_of(const Job& job, std::int64_t i) {
  const bool masked = job.loss == "masked";
  if (job.model == "tokens") {
    std::vector<std::int64_t> labels(kLength);
    for (std::int64_t t = 0; t < kLength; ++t)
      labels[static_cast<std::size_t>(t)] = masked && (i % 4 == 0 || (i + t) % 3 == 0) ? -100 : (i + t * 2) % kWords;
    return torch::tensor(labels, at::kLong);
  }
  return torch::tensor(masked && i % 5 < 2 ? std::int64_t{-100} : (i * i + i / 2) % kClasses, at::kLong);
}

struct Samples {
  at::Tensor input, target;  // (n, ...)
};
inline Samples samples_at(const Job& job, const std::vector<std::int64_t>& indices) {
  std::vector<at::Tensor> inputs, targets;
  for (const auto i : indices) {
    inputs.push_back(input_of(job, i));
    targets.push_back(target_of(job, i));
  }
  return {at::stack(inputs), at::stack(targets)};
}

/// Sum of the targets' cross entropies, how many count, and how many were right.
struct LossParts {
  at::Tensor sum, counted, right;  // () each
  std::int64_t count() const { return counted.item<std::int64_t>(); }
  std::int64_t correct() const { return right.item<std::int64_t>(); }
};
inline LossParts loss_parts(const Job& job, const at::Tensor& output, const at::Tensor& target) {
  const auto scores = output.reshape({-1, output.size(-1)});
  const auto labels = target.reshape({-1});
  namespace F = torch::nn::functional;
  const auto counts = labels.ne(-100);
  return {F::cross_entropy(scores, labels, F::CrossEntropyFuncOptions().reduction(torch::kSum).ignore_index(-100)) *
              job.scale,
          counts.sum(), scores.argmax(1).eq(labels).logical_and(counts).sum()};
}

/// Which sample a rank has as the n-th of its own with `uneven`: rank r of N has batches of unequal sizes, and ranks
/// have unequal numbers of them.
inline std::vector<std::vector<std::int64_t>> uneven_batches(const Job& job, int rank) {
  std::vector<std::vector<std::int64_t>> batches;
  std::int64_t next = 1000 * (rank + 1);
  for (int b = 0; b < kSteps - rank; ++b) {
    std::vector<std::int64_t> batch;
    for (int k = 0; k < 2 + (b + rank) % 3; ++k) batch.push_back(next++);
    batches.push_back(std::move(batch));
  }
  return batches;
}

}  // namespace troupe::differential
