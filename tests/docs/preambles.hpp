#pragma once

// What the fragments of C++ in README.md and docs/*.md may take as given; blocks.py wraps them in one of the
// TROUPE_DOCS_ functions. What is used here and declared nowhere in a page would be a page that nobody can follow: keep
// it short.
#include <troupe/testing.hpp>
#include <troupe/troupe.hpp>
#include "tests/catch.hpp"

namespace docs {

struct NetImpl : torch::nn::Module {
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(2, 2));
  at::Tensor forward(const at::Tensor& x) { return layer(x); }
};
TORCH_MODULE(Net);
using MyModel = Net;

struct MyData : troupe::Dataset {
  std::int64_t size() const override { return 8; }
  troupe::Example get(std::int64_t, const troupe::SampleContext&) const override {
    return {torch::zeros({2}), torch::zeros({}, torch::kLong)};
  }
};

inline at::Tensor loss_of(Net& model, const troupe::Batch& batch) {
  return torch::nn::functional::cross_entropy(model(batch.input), batch.target);
}

// A program's main, with its job.
#define TROUPE_DOCS_JOB                                                                                    \
  [[maybe_unused]] inline int fragment([[maybe_unused]] troupe::JobOf<Net> job, [[maybe_unused]] int argc, \
                                       [[maybe_unused]] char** argv)

// A training loop of one's own, with the model and optimizer that it has.
#define TROUPE_DOCS_RANK                                                                                              \
  [[maybe_unused]] inline void fragment(                                                                              \
      [[maybe_unused]] troupe::Rank& rank, [[maybe_unused]] Net model, [[maybe_unused]] troupe::Optimizer& optimizer, \
      [[maybe_unused]] std::shared_ptr<troupe::Dataset> dataset, [[maybe_unused]] at::Tensor tensor)

// A program that takes nothing.
#define TROUPE_DOCS_PLAIN [[maybe_unused]] inline void fragment()

}  // namespace docs
