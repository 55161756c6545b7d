#pragma once
// A job that is over in no time: which of two classes a point is of.
#include <torch/torch.h>

#include "launch/program/job_of.hpp"

class Points : public troupe::Dataset {
 public:
  std::int64_t size() const override { return 96; }
  troupe::Example get(std::int64_t index, const troupe::SampleContext&) const override {
    const auto x = static_cast<float>(index % 8) / 8, y = static_cast<float>(index / 8) / 12;
    return {torch::tensor({x, y}), torch::tensor(x > y ? 1L : 0L)};
  }
};

inline troupe::Job points() {
  troupe::Job job;
  job.model = [](const troupe::Config&) {
    torch::nn::Sequential net(torch::nn::Linear(2, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2));
    return net.ptr();
  };
  job.data = [](const troupe::Config&) { return troupe::Datasets{std::make_shared<Points>(), nullptr}; };
  job.loss = [](torch::nn::Module& model, const troupe::Batch& batch, const troupe::Config&) {
    const auto scores = dynamic_cast<torch::nn::SequentialImpl&>(model).forward(batch.input);
    return troupe::Loss(torch::nn::functional::cross_entropy(scores, batch.target));
  };
  return job;
}
