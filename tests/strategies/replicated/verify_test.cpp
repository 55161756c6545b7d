// Replicas are compared every few steps; one that differs is named, and healed or not as the config says.
#include <array>

#include "actors/recovery/heal.hpp"
#include "strategies/hooks/comm_hooks.hpp"
#include "strategies/replicated/ddp.hpp"
#include "tensor_io/optimizer/fused_optimizer.hpp"
#include "tests/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace troupe;

namespace {

constexpr int kSteps = 12, kEvery = 4, kFlip = 5;

struct Outcome {
  std::vector<std::string> errors, notices;                    // by rank; rank 0's
  std::array<std::vector<std::uint64_t>, 5> weights, moments;  // hashes by rank and step
};

// Trains; rank `culprit` flips one bit of its weights before step kFlip.
Outcome train(int world_size, int culprit, const std::string& rule, const std::string& optimizer_name = "sgd",
              int every = kEvery) {
  register_ddp();
  register_comm_hooks();
  testing::Cluster jobs;
  jobs.world_size = world_size;
  jobs.options.training.verify_every = every;
  jobs.options.training.on_divergence = rule;
  Outcome outcome;
  outcome.errors = jobs.run([&](RankSystem& rank) {
    auto& compute = rank.compute();
    const auto r = static_cast<std::size_t>(compute.rank());
    auto model = std::make_shared<torch::nn::LinearImpl>(6, 3);
    {
      torch::NoGradGuard no_grad;  // ranks are threads, and share LibTorch's generator
      for (auto& parameter : model->parameters())
        parameter.copy_(at::randn(parameter.sizes(), at::detail::createCPUGenerator(3)));
    }
    compute.distribute(model);
    OptimizerOptions options;
    options.optimizer = optimizer_name;
    options.weight_decay = 0.1;  // SGD's momentum then depends on the weights
    ParameterGroup group;
    for (const auto& item : model->named_parameters()) group.parameters.emplace_back(item.key(), item.value());
    auto optimizer = make_optimizer(options, {group});
    bool flipped = false;
    while (compute.steps_done() < kSteps) {
      const auto s = compute.steps_done();
      if (s == kFlip && compute.rank() == culprit && !std::exchange(flipped, true))
        static_cast<std::uint32_t*>(model->weight.data_ptr())[7] ^= 1u << 12;
      const auto input =
          at::randn({4, 6}, at::detail::createCPUGenerator(static_cast<std::uint64_t>(10 * s + compute.rank())));
      compute.backward(model->forward(input).pow(2).mean(), 4);
      const auto report = compute.step(*optimizer, 0.05);
      if (r == 0) outcome.notices.insert(outcome.notices.end(), report.notices.begin(), report.notices.end());
      if (report.repeat) continue;
      outcome.weights[r].push_back(hash_tensors({{"weight", model->weight}, {"bias", model->bias}}));
      outcome.moments[r].push_back(hash_tensors(optimizer->state()));
    }
  });
  return outcome;
}

}  // namespace

TEST_CASE(
    "[L05] fault 31: a replica with a flipped bit is named and healed from the majority, weights and moments bit for "
    "bit") {
  const std::string optimizer = GENERATE(as<std::string>{}, "sgd", "adamw");
  const int culprit = GENERATE(0, 2);
  const auto outcome = train(3, culprit, "heal", optimizer);
  for (const auto& error : outcome.errors) CHECK(error == "");
  const std::size_t right = culprit == 0 ? 1 : 0, wrong = static_cast<std::size_t>(culprit);
  const auto agree = [&](const auto& hashes, std::size_t step) { return hashes[right][step] == hashes[wrong][step]; };
  CHECK(agree(outcome.weights, kFlip - 1));
  for (std::size_t s = kFlip; s < 7; ++s)
    CHECK_FALSE(agree(outcome.weights, s));  // step 7 is the next that is looked at
  for (std::size_t s = 7; s < kSteps; ++s) {
    CHECK(agree(outcome.weights, s));
    CHECK(agree(outcome.moments, s));
  }
  if (optimizer == "sgd") CHECK_FALSE(agree(outcome.moments, 6));
  REQUIRE(outcome.notices.size() == 1);
  CHECK_THAT(outcome.notices[0],
             Catch::Contains("step 7: rank " + std::to_string(culprit) + " holds different parameters from ranks ") &&
                 Catch::Contains("healed"));
}

TEST_CASE(
    "[L05] fault 31: a step in which a replica was found wrong is run again, so that nothing of its gradient is left") {
  const std::string optimizer = GENERATE(as<std::string>{}, "sgd", "adamw");
  const auto healed = train(3, 1, "heal", optimizer, 1), undisturbed = train(3, -1, "heal", optimizer, 1);
  for (const auto& error : healed.errors) CHECK(error == "");
  CHECK(healed.notices.size() == 1);
  CHECK(undisturbed.notices.empty());
  for (std::size_t r = 0; r < 3; ++r) {
    CHECK(healed.weights[r] == undisturbed.weights[r]);
    CHECK(healed.moments[r] == undisturbed.moments[r]);
  }
}

TEST_CASE(
    "[L05] fault 31: two replicas that differ end the job with both named, or rank 0's is taken if the config trusts "
    "it") {
  const auto stopped = train(2, 1, "heal");
  for (const auto& error : stopped.errors)
    CHECK_THAT(error, Catch::Contains("rank 1 holds different parameters from rank 0") &&
                          Catch::Contains("so it is unknown which is right"));
  const int culprit = GENERATE(0, 1);  // trusted, even where it is wrong
  const auto trusted = train(2, culprit, "rank_0");
  for (const auto& error : trusted.errors) CHECK(error == "");
  CHECK(trusted.weights[0].back() == trusted.weights[1].back());
  REQUIRE(trusted.notices.size() == 1);
  CHECK_THAT(trusted.notices[0], Catch::Contains("healed from rank 0, rank 0's side"));
}

TEST_CASE("[L05] fault 31: the config may stop the job at any divergence, or never look") {
  for (const auto& error : train(3, 1, "stop").errors)
    CHECK_THAT(error, Catch::Contains("rank 1 holds different parameters from ranks 0, 2"));
  const auto blind = train(3, 1, "stop", "sgd", 0);
  for (const auto& error : blind.errors) CHECK(error == "");
  CHECK(blind.weights[0].back() != blind.weights[1].back());
}
