#pragma once
// The job of ddp.mlp, as bench/README.md defines it, and the lines that its programs print.
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "actors/block.hpp"

namespace mlp_job {

constexpr std::int64_t kWidth = 1024;
constexpr int kBatches = 4;

// Value i of a stream in [-scale, scale): the same bits in every language.
inline at::Tensor values(std::uint32_t stream, at::IntArrayRef shape, float scale) {
  auto tensor = torch::empty(shape);
  auto* data = tensor.data_ptr<float>();
  const float factor = scale / static_cast<float>(1 << 23);
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    auto h = static_cast<std::uint32_t>(i) + stream * 0x9E3779B1u;
    h ^= h >> 16;
    h *= 0x85EBCA6Bu;
    h ^= h >> 13;
    h *= 0xC2B2AE35u;
    h ^= h >> 16;
    data[i] = static_cast<float>(static_cast<std::int32_t>(h >> 8) - (1 << 23)) * factor;
  }
  return tensor;
}

inline torch::nn::Sequential make_model(int layers = 8) {
  torch::nn::Sequential model;
  for (int layer = 0; layer < layers; ++layer) {
    model->push_back(std::make_shared<troupe::Block<torch::nn::LinearImpl>>(kWidth, kWidth));
    if (layer + 1 < layers) model->push_back(torch::nn::ReLU());
  }
  if (layers == 0) model->push_back(torch::nn::Linear(1, 1));  // what a program takes without a model
  torch::NoGradGuard no_grad;
  std::uint32_t stream = 0;
  for (auto& parameter : model->parameters()) parameter.copy_(values(stream++, parameter.sizes(), 1.0F / 32));
  return model;
}

inline void write_raw(const std::string& path, const torch::nn::Module& model) {
  std::ofstream file(path, std::ios::binary);
  for (const auto& parameter : model.parameters()) {
    file.write(static_cast<const char*>(parameter.data_ptr()), static_cast<std::streamsize>(parameter.nbytes()));
  }
}

/// Inputs and targets of a rank, one of each for every batch.
inline std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>> batches(int rank, std::int64_t batch, int layers = 8) {
  std::vector<at::Tensor> inputs, targets;
  const auto r = static_cast<std::uint32_t>(rank);
  const std::int64_t width = layers == 0 ? 1 : kWidth;
  for (std::uint32_t k = 0; k < kBatches; ++k) {
    inputs.push_back(values(1000 + 100 * r + k, {batch, width}, 1));
    targets.push_back(values(2000 + 100 * r + k, {batch, width}, 1));
  }
  return {std::move(inputs), std::move(targets)};
}

inline void print(const char* name, const std::vector<double>& numbers) {
  std::printf("%s", name);
  for (const double number : numbers) std::printf(" %.4f", number);
  std::printf("\n");
}

inline double ms_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace mlp_job
