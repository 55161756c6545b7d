// A small training program that misbehaves on request, for launcher_test.cpp.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <thread>

#include "launch/job.hpp"
#include "tensor_io/datasets.hpp"

int main(int argc, char** argv) {
  troupe::Job job;
  job.declare = [](troupe::Config& config) {
    config.declare("fail_rank", std::int64_t{-1}, "the rank that misbehaves");
    config.declare("fail_step", std::int64_t{3}, "when");
    config.declare("fail_how", std::string("throw"), "throw, exit, kill");
    config.declare("pause_ms", std::int64_t{0}, "in every step");
  };
  job.model = [](const troupe::Config&) { return std::make_shared<torch::nn::LinearImpl>(2, 2); };
  job.data = [](const troupe::Config&) {
    const auto input = torch::randn({256, 2}, at::detail::createCPUGenerator(5));
    return troupe::Datasets{std::make_shared<troupe::TensorDataset>(input, (input.select(1, 0) > 0).to(torch::kLong)), nullptr};
  };
  int step = 0;
  job.loss = [&step](torch::nn::Module& model, const troupe::Batch& batch, const troupe::Config& config) {
    const char* rank = std::getenv("RANK");
    if (rank != nullptr && std::atoi(rank) == config.get<std::int64_t>("fail_rank") && step == config.get<std::int64_t>("fail_step")) {
      const auto how = config.get<std::string>("fail_how");
      if (how == "exit") _exit(7);
      if (how == "kill") ::kill(::getpid(), SIGKILL);
      throw std::runtime_error("the probe was told to throw");
    }
    ++step;
    std::this_thread::sleep_for(std::chrono::milliseconds(config.get<std::int64_t>("pause_ms")));
    return troupe::Loss(torch::nn::functional::cross_entropy(model.as<torch::nn::LinearImpl>()->forward(batch.input), batch.target));
  };
  return troupe::run(job, argc, argv);
}
