// A small training program that misbehaves on request, for launcher_test.cpp.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <thread>

#include "launch/job.hpp"
#include "strategies/sync_batch_norm.hpp"
#include "tensor_io/datasets.hpp"
#include "tensor_io/dropout.hpp"

int main(int argc, char** argv) {
  troupe::Job job;
  job.declare = [](troupe::Config& config) {
    config.declare("fail_rank", std::int64_t{-1}, "the rank that misbehaves");
    config.declare("fail_step", std::int64_t{3}, "when");
    config.declare("fail_how", std::string("throw"), "throw, exit, kill, hang");
    config.declare("pause_ms", std::int64_t{0}, "in every step");
    config.declare("probe_model", std::string("ours"), "ours, or norm: LibTorch's dropout, and a validation");
  };
  // With what depends on the rank: statistics of its own samples, random numbers.
  job.model = [](const troupe::Config& config) {
    // Whoever reads the output knows from it that a process is still the same.
    if (std::getenv("TROUPE_SLOT") != nullptr) std::printf("pid %d\n", static_cast<int>(::getpid()));
    std::fflush(stdout);
    const bool stock = config.get<std::string>("probe_model") == "norm";
    torch::nn::Sequential model(torch::nn::Linear(2, 16), troupe::nn::BatchNorm(16), torch::nn::Tanh());
    if (stock) {
      model->push_back(torch::nn::Dropout(0.2));
      model->push_back(torch::nn::Linear(16, 16));  // so that there are several buckets
      model->push_back(torch::nn::Tanh());
    } else {
      model->push_back(troupe::nn::Dropout(0.2));
    }
    model->push_back(torch::nn::Linear(16, 2));
    return model.ptr();
  };
  job.data = [](const troupe::Config& config) {
    const auto make = [](std::int64_t n, std::uint64_t seed) {
      const auto input = torch::randn({n, 2}, at::detail::createCPUGenerator(seed));
      return std::make_shared<troupe::TensorDataset>(input, (input.select(1, 0) > 0).to(torch::kLong));
    };
    return troupe::Datasets{make(256, 5), config.get<std::string>("probe_model") == "norm" ? make(64, 6) : nullptr};
  };
  job.loss = [](torch::nn::Module& model, const troupe::Batch& batch, const troupe::Config& config) {
    const char* rank = std::getenv("RANK");
    const auto step = batch.epoch * (256 / config.batch_size) + batch.step;
    if (rank != nullptr && std::atoi(rank) == config.get<std::int64_t>("fail_rank") && step == config.get<std::int64_t>("fail_step")) {
      const auto how = config.get<std::string>("fail_how");
      if (how == "exit") _exit(7);
      if (how == "kill") ::kill(::getpid(), SIGKILL);
      while (how == "hang") ::pause();
      throw std::runtime_error("the probe was told to throw");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(config.get<std::int64_t>("pause_ms")));
    return troupe::Loss(torch::nn::functional::cross_entropy(model.as<torch::nn::SequentialImpl>()->forward(batch.input), batch.target));
  };
  return troupe::run(job, argc, argv);
}
