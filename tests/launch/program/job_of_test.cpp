// A typed job: its parts as values, and as functions with or without the config.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launch/program/job_of.hpp"
#include "tensor_io/data/datasets.hpp"
#include "tensor_io/optimizer/fused_optimizer.hpp"
#include "tests/catch.hpp"

using namespace troupe;

namespace {

struct HeldImpl : torch::nn::Module {
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(1, 1));
  at::Tensor forward(const at::Tensor& x) { return layer(x); }
};
TORCH_MODULE(Held);

// A class of modules that is made of the config, and has no holder.
struct Sized : torch::nn::Module {
  explicit Sized(const Config& config)
      : layer(register_module("layer", torch::nn::Linear(1, config.get<std::int64_t>("width")))) {}
  torch::nn::Linear layer;
};

Datasets data() { return {std::make_shared<TensorDataset>(at::ones({256, 1}), at::ones({256, 1}), "ones"), {}}; }

/// Two steps on two ranks, by `run(argc, argv)`.
int on_two_ranks(const std::function<int(int, char**)>& run, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words{"program", "--ranks", "2", "--save_every", "-1", "--run_dir", "", "--max_steps", "2"};
  words.insert(words.end(), more.begin(), more.end());
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  return run(static_cast<int>(arguments.size()), arguments.data());
}

int run_on_two(const Job& job, const std::vector<std::string>& more = {}) {
  return on_two_ranks([&](int argc, char** argv) { return run(job, argc, argv); }, more);
}

Loss loss_of(Held& net, const Batch& batch) { return torch::mse_loss(net(batch.input), batch.target); }

}  // namespace

TEST_CASE("[E03] a typed job is given data as a value and its loss as a plain function") {
  CHECK(on_two_ranks([](int argc, char** argv) { return run<Held>(argc, argv, {.data = data(), .loss = loss_of}); }) ==
        0);
}

TEST_CASE("[E03] a typed job's functions get the config, or leave it out, and the rank's own model") {
  std::atomic<int> models = 0, losses = 0, optimizers = 0, datas = 0;
  JobOf<Held> job;
  job.declare = [](Config& config) { config.declare("width", std::int64_t{3}, "of the test"); };
  job.model = [&](const Config& config) {
    models += config.get<std::int64_t>("width") == 5;
    return Held();
  };
  job.data = [&] {
    ++datas;
    return data();
  };
  job.loss = [&](Held& net, const Batch& batch, const Config& config) {
    losses += config.get<std::int64_t>("width") == 5 && net->is_training();
    return loss_of(net, batch);
  };
  job.optimizer = [&](const HeldImpl& net, const Config& config) {
    ++optimizers;
    ParameterGroup group;
    group.parameters.emplace_back("layer.weight", net.layer->weight);
    return make_optimizer(config, {group});
  };
  CHECK(run_on_two(job, {"--width", "5"}) == 0);
  CHECK(models == 2);
  CHECK(datas == 2);
  CHECK(losses == 4);
  CHECK(optimizers == 2);
}

TEST_CASE("[E03] a class of modules without a holder is made of the config") {
  std::atomic<std::int64_t> width = 0;
  JobOf<Sized> job;
  job.declare = [](Config& config) { config.declare("width", std::int64_t{3}, "of the test"); };
  job.data = data();
  job.loss = [&](Sized& net, const Batch& batch) {
    width = net.layer->weight.size(0);
    return torch::mse_loss(net.layer(batch.input), batch.target.expand({-1, width}));
  };
  CHECK(run_on_two(job) == 0);
  CHECK(width == 3);
}

TEST_CASE("[E03] a job that lacks a part is refused by the part's name before anything begins") {
  const auto refusal = [](const Job& job) {
    try {
      check_parts(job);
      return std::string();
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  JobOf<torch::nn::Sequential> no_loss;
  no_loss.data = data();
  CHECK_THAT(refusal(no_loss), Catch::Contains("loss") && Catch::Contains("job.loss"));
  JobOf<Held> no_data;
  no_data.loss = loss_of;
  CHECK_THAT(refusal(no_data), Catch::Contains("job.data"));
  CHECK_THAT(refusal(Job{}), Catch::Contains("job.model"));
  CHECK(run_on_two(no_data) == exit_code(ErrorCode::usage));
}
