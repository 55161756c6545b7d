// Activation checkpointing under DDP's hooks and buckets.
#include "actors/block/activation_checkpointing.hpp"
#include "actors/block/block.hpp"
#include "strategies/batch_norm/sync_batch_norm.hpp"
#include "strategies/hooks/comm_hooks.hpp"
#include "strategies/replicated/ddp.hpp"
#include "tensor_io/optimizer/fused_optimizer.hpp"
#include "tests/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace troupe;

namespace {

enum class Random { none, ours, stock };

struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(Random random) : random_(random) {}
  torch::nn::Linear up = register_module("up", torch::nn::Linear(8, 24));
  nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(24));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(24, 8));
  nn::Dropout ours = register_module("ours", nn::Dropout(0.25));
  torch::nn::Dropout stock = register_module("stock", torch::nn::Dropout(0.25));
  at::Tensor forward(const at::Tensor& x) {
    auto y = torch::tanh(norm(up(x)));
    if (random_ == Random::ours) y = ours(y);
    if (random_ == Random::stock) y = stock(y);
    return x + down(y);
  }
  Random random_;
};
TROUPE_BLOCK(Layer);

struct ModelImpl : torch::nn::Module {
  explicit ModelImpl(Random random) {
    for (int i = 0; i < 3; ++i) layers.emplace_back(register_module("layer" + std::to_string(i), Layer(random)));
  }
  at::Tensor forward(const at::Tensor& input) {
    auto x = input;
    for (auto& layer : layers) x = layer(x);
    return head(layers[0](x));  // a block that is called twice: its parameters' gradients come once all the same
  }
  std::vector<Layer> layers;
  torch::nn::Linear head = register_module("head", torch::nn::Linear(8, 1));
};

/// Parameters and buffers of rank 0 after eight steps with two micro-batches each.
std::vector<at::Tensor> train(int world_size, Random random, const std::string& policy, bool sync_batchnorm,
                              std::int64_t* launched = nullptr) {
  static const bool registered = [] {
    register_ddp();
    register_comm_hooks();
    return true;
  }();
  (void)registered;
  testing::Cluster cluster;
  cluster.world_size = world_size;
  cluster.options.training.grad_accum_steps = 2;
  cluster.options.strategy.bucket_cap_mb = 1e-6;  // a bucket for each parameter, so that its order counts
  cluster.options.strategy.first_bucket_mb = 1e-6;
  std::vector<at::Tensor> state;
  const auto errors = cluster.run([&](RankSystem& rank) {
    static std::mutex building;
    std::shared_ptr<ModelImpl> model;
    {
      std::lock_guard lock(building);
      seed_generator(1, {});
      model = std::make_shared<ModelImpl>(random);
    }
    auto& compute = rank.compute();
    if (sync_batchnorm) convert_sync_batchnorm(*model, compute.services().program_communicator);
    checkpoint_activations(model, policy);
    compute.distribute(model);
    ParameterGroup group;
    for (const auto& item : model->named_parameters()) group.parameters.emplace_back(item.key(), item.value());
    auto optimizer = make_optimizer(OptimizerOptions{}, {group});
    for (std::int64_t step = 0; step < 8; ++step) {
      for (std::int64_t micro = 0; micro < 2; ++micro) {
        auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 + 10 * step + micro));
        const auto all = at::randn({8, 8}, generator);
        const auto share = 8 / compute.world_size();
        const auto input = all.narrow(0, compute.rank() * share, share);
        compute.seed_forward();
        compute.backward((model->forward(input) - input.sum(1, true)).square().mean(), static_cast<double>(share));
      }
      const auto report = compute.step(*optimizer, 0.05);
      if (launched != nullptr && compute.rank() == 0) *launched = report.launched_before_end;
    }
    if (compute.rank() == 0) {
      for (const auto& [name, tensor] : compute.strategy().replicated_tensors()) state.push_back(tensor.clone());
    }
  });
  for (const auto& error : errors) CHECK(error == "");
  return state;
}

bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return !a.empty() && std::equal(a.begin(), a.end(), b.begin(), b.end(),
                                  [](const auto& x, const auto& y) { return at::equal(x, y); });
}

}  // namespace

TEST_CASE("[F07] DDP trains to the same bits with and without activation checkpointing") {
  const auto policy = GENERATE(as<std::string>{}, "block", "every:2");
  SECTION("two ranks, troupe's dropout, BatchNorm of each rank") {
    CHECK(equal(train(2, Random::ours, policy, false), train(2, Random::ours, "none", false)));
  }
  SECTION("two ranks, SyncBatchNorm, whose collectives run again in the second forward") {
    CHECK(equal(train(2, Random::none, policy, true), train(2, Random::none, "none", true)));
  }
  SECTION("one rank, LibTorch's dropout") {
    CHECK(equal(train(1, Random::stock, policy, false), train(1, Random::stock, "none", false)));
    CHECK_FALSE(equal(train(1, Random::stock, policy, false), train(1, Random::none, "none", false)));
  }
}
