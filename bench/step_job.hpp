#pragma once
// What the programs of the rows train, as bench/README.md defines it, and the lines that they print.
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace step_job {

constexpr std::size_t kBatches = 4;  ///< that a rank has in memory, and takes in turns

struct Job {
  std::shared_ptr<torch::nn::Module> model;                                    ///< with its initial values
  std::function<at::Tensor(torch::nn::Module& model, std::size_t step)> loss;  ///< of this rank's batch of that step
};

/// `name`: mlp (of that many layers; 0: next to no model), gpt or resnet. Throws std::invalid_argument for another.
Job make_job(const std::string& name, int rank, std::int64_t batch, int layers);

/// Raw little-endian float32, one parameter after the other.
void write_raw(const std::string& path, const torch::nn::Module& model);

void print(const char* name, const std::vector<double>& numbers);

inline double ms_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace step_job
