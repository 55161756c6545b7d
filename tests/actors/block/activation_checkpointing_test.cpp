#include "actors/block/activation_checkpointing.hpp"

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/torch.h>

#include "actors/block/block.hpp"
#include "tensor_io/layers/autocast.hpp"
#include "tensor_io/layers/dropout.hpp"
#include "tests/catch.hpp"

namespace {

int forwards = 0;  // of all layers

struct LayerImpl : torch::nn::Module {
  LayerImpl(std::int64_t width, std::int64_t hidden)
      : up(register_module("up", torch::nn::Linear(width, hidden))),
        norm(register_module("norm", torch::nn::BatchNorm1d(hidden))),
        stock(register_module("stock", torch::nn::Dropout(0.3))),
        ours(register_module("ours", troupe::nn::Dropout(0.3))),
        down(register_module("down", torch::nn::Linear(hidden, width))) {}
  at::Tensor forward(const at::Tensor& x) {
    ++forwards;
    return x + down(ours(stock(torch::relu(norm(up(x))))));
  }
  torch::nn::Linear up;
  torch::nn::BatchNorm1d norm;
  torch::nn::Dropout stock;
  troupe::nn::Dropout ours;
  torch::nn::Linear down;
};
TROUPE_BLOCK(Layer);

/// Two layers in a block, several inputs and outputs, an input that comes back, one that has no gradient.
struct PairImpl : torch::nn::Module {
  PairImpl(std::int64_t width, std::int64_t hidden)
      : first(register_module("first", Layer(width, hidden))),
        second(register_module("second", Layer(width, hidden))) {}
  std::tuple<at::Tensor, std::vector<at::Tensor>> forward(at::Tensor x, const std::optional<at::Tensor>& gate,
                                                          double scale) {
    auto y = first(x);
    if (gate) y = y * *gate;
    const auto z = second(y) * scale;
    return {z, {y.tanh(), x}};
  }
  Layer first, second;
};
TROUPE_BLOCK(Pair);

struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::int64_t width = 6, std::int64_t hidden = 16) {
    head = register_module("head", torch::nn::Linear(width, 3));
    for (int i = 0; i < 4; ++i) layers.emplace_back(register_module("layer" + std::to_string(i), Layer(width, hidden)));
    pair = register_module("pair", Pair(width, hidden));
  }
  at::Tensor forward(const at::Tensor& input) {
    auto x = input;
    for (auto& layer : layers) x = layer(x);
    x = layers[0](x);  // twice in a forward
    const auto [z, others] = pair(x, torch::full({1}, 0.5), 2.0);
    return head(z + others[0] + others[1]);
  }
  std::vector<Layer> layers;
  Pair pair = nullptr;
  torch::nn::Linear head = nullptr;
};
TROUPE_BLOCK(Net);

std::shared_ptr<NetImpl> make_net(const std::string& policy, std::int64_t width = 6, std::int64_t hidden = 16) {
  torch::manual_seed(3);
  auto net = std::make_shared<NetImpl>(width, hidden);
  troupe::checkpoint_activations(net, policy);
  return net;
}

/// Everything that two steps leave behind: outputs, gradients, buffers, the generator's state.
std::vector<at::Tensor> train_two_steps(NetImpl& net, bool autocast = false) {
  const auto position = std::make_shared<troupe::ForwardPosition>();
  troupe::place_dropout(net, position);
  torch::manual_seed(7);
  std::vector<at::Tensor> result;
  for (int step = 0; step < 2; ++step) {
    position->step = step;
    ++position->visit;
    const auto input = torch::randn({5, 6});
    at::Tensor loss;
    {
      const troupe::AutocastGuard guard(autocast);
      loss = net.forward(input).square().mean();
    }
    position->step = 100;  // backward may come when another forward has begun
    ++position->visit;
    loss.backward();
    result.push_back(loss.detach());
  }
  for (const auto& parameter : net.parameters()) result.push_back(parameter.grad().clone());
  for (const auto& buffer : net.buffers()) result.push_back(buffer.clone());
  result.push_back(at::detail::getDefaultCPUGenerator().get_state());
  return result;
}

bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return at::equal(x, y); });
}

/// Counts the bytes that this thread's tensors hold.
struct Bytes final : c10::MemoryReportingInfoBase {
  std::int64_t now = 0, peak = 0;
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override {
    now += bytes;
    peak = std::max(peak, now);
  }
  bool memoryProfilingEnabled() const override { return true; }
};

}  // namespace

TEST_CASE("[F07] gradients, buffers and random numbers are equal bit by bit with and without checkpointing",
          "[checkpointing]") {
  const bool autocast = GENERATE(false, true);
  const auto expected = train_two_steps(*make_net("none"), autocast);
  const auto policy = GENERATE(as<std::string>{}, "block", "every:2", "every:3", "name:pair", "name:pair.*",
                               "name:**.first,layer1", "type:Layer");
  forwards = 0;
  const auto actual = train_two_steps(*make_net(policy), autocast);
  CHECK(forwards > 2 * 7);  // it did compute again
  CHECK(equal(actual, expected));
}

TEST_CASE("[F07] a policy picks the blocks, and none takes them back", "[checkpointing]") {
  const auto recomputed = [](const std::string& policy) {
    auto net = make_net(policy);
    forwards = 0;
    net->forward(torch::randn({5, 6})).sum().backward();
    return forwards - 7;
  };
  CHECK(recomputed("none") == 0);
  CHECK(recomputed("block") == 7);    // layer0 twice; pair with both layers inside
  CHECK(recomputed("every:2") == 5);  // layer0 twice, layer2, pair
  CHECK(recomputed("name:layer1") == 1);
  CHECK(recomputed("name:pair.second") == 1);
  auto net = make_net("block");
  CHECK(troupe::checkpoint_activations(net, "every:4") == 2);
  CHECK(troupe::checkpoint_activations(net, "none") == 0);
  forwards = 0;
  net->forward(torch::randn({5, 6})).sum().backward();
  CHECK(forwards == 7);
}

TEST_CASE("[F07] what forward computed inside a block is not kept until backward", "[checkpointing]") {
  constexpr std::int64_t kWidth = 8, kHidden = 1024, kBatch = 64;
  const auto x = torch::randn({kBatch, kWidth});
  const auto bytes_after_forward = [&](const std::string& policy) {
    auto net = make_net(policy, kWidth, kHidden);
    auto bytes = std::make_shared<Bytes>();
    at::Tensor loss;
    std::int64_t held = 0;
    {
      const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
      loss = net->forward(x).mean();
      held = bytes->now;
      loss.backward();
    }
    std::int64_t gradients = 0;
    for (const auto& parameter : net->parameters()) gradients += static_cast<std::int64_t>(parameter.grad().nbytes());
    CHECK(bytes->now < gradients + 64 * kBatch * kWidth * 4);  // nothing of the hidden layers is left
    return std::pair(held, bytes->peak);
  };
  const auto [plain_held, plain_peak] = bytes_after_forward("none");
  const auto [held, peak] = bytes_after_forward("block");
  // Seven layers keep at least up's output, norm's, relu's and two masks' worth of hidden activations.
  constexpr std::int64_t kHiddenBytes = kBatch * kHidden * 4;
  CHECK(plain_held > 7 * 4 * kHiddenBytes);
  CHECK(held < kHiddenBytes);
  CHECK(peak < plain_peak * 2 / 3);
}

TEST_CASE("[F07] the second forward comes when the first gradient enters the block, inside its hooks",
          "[checkpointing]") {
  struct Log final : troupe::BlockHook {
    std::vector<std::string> lines;
    void write(const char* what, const troupe::BlockCall& call) {
      lines.push_back(std::string(what) + " " + call.block->block_name() + (call.recompute ? " again" : ""));
    }
    void before_forward(const troupe::BlockCall& call) override { write("forward", call); }
    void before_backward(const troupe::BlockCall& call) override { write("backward", call); }
    void after_backward(const troupe::BlockCall& call) override { write("end", call); }
  };
  const auto log = std::make_shared<Log>();
  const auto pair = std::make_shared<troupe::Block<PairImpl>>(4, 8);
  const auto model = std::make_shared<torch::nn::SequentialImpl>();
  model->register_module("pair", pair);
  CHECK(troupe::checkpoint_activations(model, "block") == 1);
  for (auto* block : {static_cast<troupe::BlockCalls*>(pair.get()), static_cast<troupe::BlockCalls*>(pair->first.get()),
                      static_cast<troupe::BlockCalls*>(pair->second.get())}) {
    block->add_hook(log);
  }
  std::get<0>(pair->forward(torch::randn({3, 4}), {}, 1.0)).sum().backward();
  CHECK(log->lines == std::vector<std::string>{"forward pair", "forward pair.first", "forward pair.second",
                                               "backward pair", "forward pair.first again", "forward pair.second again",
                                               "backward pair.second", "end pair.second", "backward pair.first",
                                               "end pair.first", "end pair"});
}

TEST_CASE("[F07] a weight that several checkpointed blocks share gets its gradient once", "[checkpointing]") {
  struct TiedImpl : torch::nn::Module {
    explicit TiedImpl(at::Tensor w) : weight(std::move(w)) {}
    at::Tensor forward(const at::Tensor& x) { return torch::tanh(x.matmul(weight)); }
    at::Tensor weight;
  };
  const auto gradient = [](bool checkpointed) {
    torch::manual_seed(1);
    const auto weight = torch::randn({6, 6}, torch::requires_grad());
    const auto model = std::make_shared<torch::nn::SequentialImpl>();
    auto x = torch::randn({3, 6});
    std::vector<std::shared_ptr<troupe::Block<TiedImpl>>> blocks;
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(std::make_shared<troupe::Block<TiedImpl>>(weight));
      model->register_module(std::to_string(i), blocks.back());
    }
    if (checkpointed) CHECK(troupe::checkpoint_activations(model, "block") == 4);
    int accumulated = 0;
    struct Count final : torch::autograd::PostAccumulateGradHook {
      explicit Count(int& n) : n_(n) {}
      void operator()(const torch::autograd::Variable&) override { ++n_; }
      int& n_;
    };
    torch::autograd::impl::set_post_acc_grad_hooks(weight, std::make_unique<Count>(accumulated));
    for (const auto& block : blocks) x = block->forward(x);
    x.sum().backward();
    CHECK(accumulated == 1);
    return weight.grad().clone();
  };
  CHECK((torch::equal(gradient(true), gradient(false))));
}

TEST_CASE("[F07] a graph may be run twice, and outputs that are not used don't matter", "[checkpointing]") {
  const auto run = [](const std::string& policy, bool all) {
    auto net = make_net(policy);
    torch::manual_seed(5);
    const auto x = torch::randn({5, 6}, torch::requires_grad());
    const auto [z, others] = net->pair(x, std::nullopt, 1.0);
    const auto loss = all ? z.sum() + others[0].sum() + others[1].sum() : others[0].sum();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    return x.grad().clone();
  };
  const bool all = GENERATE(true, false);
  CHECK((torch::equal(run("block", all), run("none", all))));
}

TEST_CASE("[F07] a forward without gradients keeps nothing and runs once", "[checkpointing]") {
  auto net = make_net("block");
  forwards = 0;
  const auto x = torch::randn({5, 6});
  SECTION("NoGradGuard") {
    const torch::NoGradGuard no_grad;
    CHECK_FALSE((net->forward(x).requires_grad()));
  }
  SECTION("eval") {
    net->eval();
    const auto expected = make_net("none");
    expected->eval();
    CHECK((torch::equal(net->forward(x), expected->forward(x))));
    forwards = 7;
  }
  SECTION("a graph that is dropped") { net->forward(x); }
  CHECK(forwards == 7);
}

TEST_CASE("[F07] a forward that differentiates by itself works", "[checkpointing]") {
  struct SlopeImpl : torch::nn::Module {
    SlopeImpl() : fc(register_module("fc", torch::nn::Linear(3, 3))) {}
    at::Tensor forward(const at::Tensor& x) {
      const auto inner = x.detach().requires_grad_(true);
      const auto energy = torch::tanh(fc(inner)).sum();
      return x * torch::autograd::grad({energy}, {inner}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
    }
    torch::nn::Linear fc;
  };
  const auto gradient = [](const std::string& policy) {
    torch::manual_seed(2);
    const auto block = std::make_shared<troupe::Block<SlopeImpl>>();
    const auto model = std::make_shared<torch::nn::SequentialImpl>();
    model->register_module("slope", block);
    troupe::checkpoint_activations(model, policy);
    block->forward(torch::randn({2, 3})).sum().backward();
    return block->fc->weight.grad().clone();
  };
  CHECK((torch::equal(gradient("block"), gradient("none"))));
}

namespace {

struct MoodyImpl : torch::nn::Module {
  MoodyImpl() : fc(register_module("fc", torch::nn::Linear(3, 3))) {}
  at::Tensor forward(at::Tensor x) {
    if (in_place) return fc(x.mul_(2));
    return calls++ % 2 == 0 ? torch::tanh(fc(x)) : fc(x) * 1;
  }
  torch::nn::Linear fc;
  bool in_place = false;
  int calls = 0;
};
TROUPE_BLOCK(Moody);

struct WritesImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor& x) { return x * 2; }
};
TROUPE_BLOCK(Writes);

}  // namespace

TEST_CASE("[F07] a block that can't be computed again is named with the reason", "[checkpointing]") {
  const auto model = std::make_shared<torch::nn::SequentialImpl>();
  Moody moody;
  model->register_module("moody", moody.ptr());
  troupe::checkpoint_activations(model, "block");
  const auto x = torch::randn({2, 3}, torch::requires_grad());
  SECTION("another forward the second time") {
    const auto loss = moody(x).sum();
    CHECK_THROWS_WITH(loss.backward(), Catch::Contains("checkpointing of moody") && Catch::Contains("saved"));
  }
  SECTION("it changes its input") {
    moody->in_place = true;
    CHECK_THROWS_WITH(moody(x * 1), Catch::Contains("moody: input tensor 1 was changed in place in forward"));
  }
  SECTION("the input is changed later") {
    const auto input = x * 1;
    const auto loss = moody(input).sum();
    {
      const torch::NoGradGuard no_grad;
      input.mul_(2);
    }
    CHECK_THROWS_WITH(loss.backward(), Catch::Contains("input tensor 1 was changed in place since"));
  }
  SECTION("eval in between") {
    const auto loss = moody(x).sum();
    moody->eval();
    CHECK_THROWS_WITH(loss.backward(), Catch::Contains("train() or eval() was called"));
  }
  SECTION("an argument that is written to") {
    Writes writes;
    model->register_module("writes", writes.ptr());
    troupe::checkpoint_activations(model, "block");
    auto y = x * 1;
    CHECK_THROWS_WITH(writes(y), Catch::Contains("can't be copied for the recompute"));
  }
}

TEST_CASE("[F07] a policy that can't be is refused", "[checkpointing]") {
  const auto net = make_net("none");
  CHECK_THROWS_WITH(troupe::checkpoint_activations(net, "all"),
                    Catch::Contains("activation_checkpointing=all") && Catch::Contains("every:N"));
  CHECK_THROWS_WITH(troupe::checkpoint_activations(net, "every:0"),
                    Catch::Contains("'0' is not a positive whole number"));
  CHECK_THROWS_WITH(troupe::checkpoint_activations(net, "name:head"), Catch::Contains("is not a block"));
  CHECK_THROWS_WITH(troupe::checkpoint_activations(torch::nn::Linear(2, 2).ptr(), "block"),
                    Catch::Contains("no blocks below it"));
  CHECK(troupe::stock_random_module(*net) == std::nullopt);
  troupe::checkpoint_activations(net, "name:pair.second");
  CHECK(troupe::stock_random_module(*net) == "pair.second.stock");
}

namespace {

/// A block with a layer that no forward of these tests runs.
struct HolderImpl : torch::nn::Module {
  explicit HolderImpl(std::shared_ptr<torch::nn::Module> layer) { register_module("layer", std::move(layer)); }
  at::Tensor forward(const at::Tensor& x) { return x; }
};
TROUPE_BLOCK(Holder);

}  // namespace

TEST_CASE("[F07] each layer of LibTorch that draws random numbers is found in a block that is checkpointed") {
  namespace nn = torch::nn;
  const auto found = [](std::shared_ptr<nn::Module> layer) {
    const auto model = std::make_shared<nn::Module>();
    model->register_module("holder", Holder(std::move(layer)).ptr());
    troupe::checkpoint_activations(model, "block");
    return troupe::stock_random_module(*model).value_or("");
  };
  const auto attention = [](double dropout) {
    return nn::MultiheadAttention(nn::MultiheadAttentionOptions(4, 2).dropout(dropout)).ptr();
  };
  for (const auto& layer : std::vector<std::shared_ptr<nn::Module>>{
           nn::Dropout(0.1).ptr(), nn::Dropout2d(0.1).ptr(), nn::Dropout3d(0.1).ptr(), nn::AlphaDropout(0.1).ptr(),
           nn::FeatureAlphaDropout(0.1).ptr(), nn::RReLU().ptr(), attention(0.1)}) {
    INFO(layer->name());
    CHECK(found(layer) == "holder.layer");
  }
  CHECK(found(nn::Dropout(0.).ptr()) == "");
  CHECK(found(attention(0)) == "");
}
