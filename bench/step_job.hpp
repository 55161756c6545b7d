#pragma once
// What the programs of the rows train, as bench/README.md defines it, and the lines that they print.
#include <torch/torch.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace step_job {

constexpr std::size_t kBatches = 4;  ///< that a rank has in memory, and takes in turns

struct Job {
  std::shared_ptr<torch::nn::Module> model;  ///< with its initial values
  std::vector<at::Tensor> inputs, targets;   ///< kBatches of this rank's
  std::function<at::Tensor(torch::nn::Module& model, at::Tensor input, const at::Tensor& target)> criterion;

  /// Of this rank's batch of that step.
  at::Tensor loss(std::size_t step) const {
    return criterion(*model, inputs[step % kBatches], targets[step % kBatches]);
  }
};

inline constexpr std::array<std::string_view, 7> kJobs{"mlp",      "gpt",      "resnet",     "gpt124m",
                                                       "resnet50", "gpt_tiny", "resnet_tiny"};
std::invalid_argument no_such_job(const std::string& name);

/// One of kJobs; `layers`: of mlp, 0: next to no model. Throws no_such_job for another.
Job make_job(const std::string& name, int rank, std::int64_t batch, int layers);
/// With momentum, lr 1e-2; the others with AdamW.
bool trains_with_sgd(const std::string& job);
/// What its peer has: the job's optimizer, into a Config's settings.
template <class Config>
void set_optimizer(const std::string& job, Config& config) {
  const bool sgd = trains_with_sgd(job);
  config.optimizer = sgd ? "sgd" : "adamw";
  config.lr = sgd ? 1e-2 : 1e-3;
  config.momentum = 0.9;
  config.weight_decay = sgd ? 0 : 0.01;
}
/// Images and the weights of convolutions with what a convolution reads together in memory.
Job channels_last(Job job);
/// One rank's that does the work of several: their batches, one behind the other.
Job joined(const std::vector<Job>& ranks);

/// Raw little-endian float32, one parameter after the other.
void write_raw(const std::string& path, const std::vector<at::Tensor>& parameters);

void print(const char* name, const std::vector<double>& numbers);

inline double ms_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace step_job
