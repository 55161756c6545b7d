#include "actors/block/block.hpp"

#include <torch/torch.h>

#include "tests/catch.hpp"

namespace {

using Events = std::vector<std::string>;

/// Writes down what it is called for: `before_backward fc 2`, the number counting the hook's calls of the forward
/// from 1.
class Log final : public troupe::BlockHook {
 public:
  explicit Log(std::shared_ptr<Events> events, std::string mark = "")
      : events_(std::move(events)), mark_(std::move(mark)) {}
  void before_forward(const troupe::BlockCall& call) override { write("before_forward", call); }
  void after_forward(const troupe::BlockCall& call) override {
    write(call.differentiable ? "after_forward" : "after_forward-", call);
  }
  void before_backward(const troupe::BlockCall& call) override { write("before_backward", call); }
  void after_backward(const troupe::BlockCall& call) override {
    write("after_backward", call);
    if (on_after_backward) on_after_backward(call);
  }
  std::function<void(const troupe::BlockCall&)> on_after_backward;

 private:
  void write(const std::string& what, const troupe::BlockCall& call) {
    const auto name = call.block->block_name();
    auto& number = numbers_[call.id];
    if (number.empty()) number = std::to_string(++calls_[name]);
    events_->push_back(mark_ + what + " " + name + (number == "1" ? "" : " " + number) +
                       (call.recompute ? " again" : ""));
  }
  std::shared_ptr<Events> events_;
  std::string mark_;
  std::map<std::uint64_t, std::string> numbers_;
  std::map<std::string, int> calls_;
};

struct FeedForwardImpl : torch::nn::Module {
  FeedForwardImpl()
      : up(register_module("up", torch::nn::Linear(4, 8))), down(register_module("down", torch::nn::Linear(8, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return down(torch::relu(up(x))); }
  torch::nn::Linear up, down;
};
TROUPE_BLOCK(FeedForward);

struct LayerImpl : torch::nn::Module {
  LayerImpl()
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})))),
        ff(register_module("ff", FeedForward())) {}
  at::Tensor forward(at::Tensor x) { return x + ff(norm(x)); }
  torch::nn::LayerNorm norm;
  FeedForward ff;
};
TROUPE_BLOCK(Layer);

using WordsImpl = torch::nn::EmbeddingImpl;
TROUPE_BLOCK(Words);

struct NetImpl : torch::nn::Module {
  NetImpl()
      : words(register_module("words", Words(10, 4))), layers(register_module("layers", torch::nn::ModuleList())) {
    for (int i = 0; i < 2; ++i) layers->push_back(Layer());
  }
  at::Tensor forward(const at::Tensor& ids) {
    auto x = words(ids);
    for (const auto& layer : *layers) x = layer->as<Layer::Impl>()->forward(x);
    return x;
  }
  Words words;
  torch::nn::ModuleList layers;
};
TROUPE_BLOCK(Net);

struct ManyImpl : torch::nn::Module {
  using Parts = std::tuple<at::Tensor, std::vector<at::Tensor>, std::optional<at::Tensor>, std::pair<at::Tensor, int>>;
  ManyImpl() : fc(register_module("fc", torch::nn::Linear(4, 4))) {}
  Parts forward(const std::vector<at::Tensor>& inputs, std::optional<at::Tensor> extra = {}) {
    const auto y = fc(inputs.at(0));
    return {y, {y * 2, inputs.at(1) * 3}, extra, {y.detach(), 7}};
  }
  torch::nn::Linear fc;
};
TROUPE_BLOCK(Many);

struct ScaleImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, double factor = 2, const at::Tensor& offset = {}) const {
    return offset.defined() ? x * factor + offset : x * factor;
  }
};
TROUPE_BLOCK(Scale);

struct HandOutImpl : torch::nn::Module {
  HandOutImpl() : weight(register_parameter("weight", torch::ones({3}))) {}
  at::Tensor forward(bool own) { return own ? weight : torch::zeros({3}); }
  at::Tensor weight;
};
TROUPE_BLOCK(HandOut);

struct InPlaceImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor x) { return x.relu_(); }
};
TROUPE_BLOCK(InPlace);

/// A gate that depends on no input: an inner block whose inputs need no gradient.
struct GateImpl : torch::nn::Module {
  GateImpl() : inner(register_module("inner", FeedForward())) {}
  at::Tensor forward(const at::Tensor& x) { return x * inner(torch::ones({1, 4})); }
  FeedForward inner;
};
TROUPE_BLOCK(Gate);

struct KeepImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x; }
};
TROUPE_BLOCK(Keep);

std::shared_ptr<Log> watch(torch::nn::Module& model, const std::shared_ptr<Events>& events) {
  troupe::name_blocks(model);
  auto log = std::make_shared<Log>(events);
  model.apply([&](torch::nn::Module& module) {
    if (auto* block = dynamic_cast<troupe::BlockCalls*>(&module)) block->add_hook(log);
  });
  return log;
}

std::size_t graph_nodes(const at::Tensor& output) {
  std::set<torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> next{output.grad_fn().get()};
  while (!next.empty()) {
    auto* node = next.back();
    next.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    for (const auto& edge : node->next_edges()) next.push_back(edge.function.get());
  }
  return seen.size();
}

}  // namespace

TEST_CASE("[F02] every way to call a block passes its hooks", "[block]") {
  const auto events = std::make_shared<Events>();
  FeedForward block;
  watch(*block, events);
  const auto x = torch::randn({2, 4});
  const Events once{"before_forward FeedForward", "after_forward FeedForward"};
  at::Tensor y;
  SECTION("the holder") { y = block(x); }
  SECTION("the module itself") { y = (*block)(x); }
  SECTION("forward by name") { y = block->forward(x); }
  SECTION("a Sequential") { y = torch::nn::Sequential(block)->forward(x); }
  SECTION("an AnyModule") { y = torch::nn::AnyModule(block).forward(x); }
  CHECK(events->size() == 2);
  CHECK(*events == once);
  CHECK((torch::equal(y, block->down(torch::relu(block->up(x))))));
}

TEST_CASE("[F02] a block is the module that it was made of, under the same names", "[block]") {
  Layer layer;
  std::vector<std::string> names;
  for (const auto& item : layer->named_parameters()) names.push_back(item.key());
  CHECK(names == std::vector<std::string>{"norm.weight", "norm.bias", "ff.up.weight", "ff.up.bias", "ff.down.weight",
                                          "ff.down.bias"});
  CHECK(layer->block_type() == "Layer");

  const auto linear = std::make_shared<troupe::Block<torch::nn::LinearImpl>>(3, 5);
  CHECK(linear->block_type() == "Linear");
  CHECK((linear->weight.sizes() == at::IntArrayRef{5, 3}));
  CHECK((linear->forward(torch::ones({2, 3})).sizes() == at::IntArrayRef{2, 5}));
  CHECK(linear->as<torch::nn::LinearImpl>() != nullptr);

  const auto events = std::make_shared<Events>();
  const auto list =
      std::make_shared<troupe::Block<torch::nn::SequentialImpl>>(torch::nn::Linear(4, 4), torch::nn::ReLU());
  list->add_hook(std::make_shared<Log>(events));
  CHECK((list->forward(torch::ones({1, 4})).sizes() == at::IntArrayRef{1, 4}));
  CHECK(*events == Events{"before_forward Sequential", "after_forward Sequential"});
}

TEST_CASE("[F02] default arguments hold where the block itself is called", "[block]") {
  const auto events = std::make_shared<Events>();
  Scale scale;
  const auto x = torch::ones({2}, torch::requires_grad());
  const bool hooked = GENERATE(false, true);
  if (hooked) watch(*scale, events);
  CHECK((torch::equal(scale(x), x * 2)));
  CHECK((torch::equal((*scale)(x, 3), x * 3)));  // an int where forward takes a double
  CHECK((torch::equal(scale->forward(x, 3.0, x), x * 4)));
  CHECK(events->size() == (hooked ? 6 : 0));
}

TEST_CASE("[F02] a block that nothing hangs on makes no autograd node", "[block]") {
  torch::manual_seed(1);
  FeedForward block;
  FeedForwardImpl plain;
  const auto x = torch::randn({2, 4}, torch::requires_grad());
  CHECK(graph_nodes(block(x)) == graph_nodes(plain.forward(x)));
  const auto hook = std::make_shared<Log>(std::make_shared<Events>());
  block->add_hook(hook);
  CHECK(graph_nodes(block(x)) > graph_nodes(plain.forward(x)));
  block->remove_hook(hook.get());
  CHECK(graph_nodes(block(x)) == graph_nodes(plain.forward(x)));
}

TEST_CASE("[F02] hooks run around forward and backward, outer blocks around inner ones", "[block]") {
  const auto events = std::make_shared<Events>();
  Net net;
  const auto ids = torch::tensor({{1, 2, 3}});
  net(ids).sum().backward();
  std::vector<at::Tensor> expected;
  for (const auto& parameter : net->parameters()) expected.push_back(parameter.grad().clone());
  net->zero_grad();

  watch(*net, events);
  net->set_block_name("net");
  const auto loss = net(ids).sum();
  CHECK(*events == Events{"before_forward net", "before_forward words", "after_forward words",
                          "before_forward layers.0", "before_forward layers.0.ff", "after_forward layers.0.ff",
                          "after_forward layers.0", "before_forward layers.1", "before_forward layers.1.ff",
                          "after_forward layers.1.ff", "after_forward layers.1", "after_forward net"});
  events->clear();
  loss.backward();
  CHECK(*events == Events{"before_backward net", "before_backward layers.1", "before_backward layers.1.ff",
                          "after_backward layers.1.ff", "after_backward layers.1", "before_backward layers.0",
                          "before_backward layers.0.ff", "after_backward layers.0.ff", "after_backward layers.0",
                          "before_backward words", "after_backward words", "after_backward net"});
  const auto parameters = net->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) CHECK((torch::equal(parameters[i].grad(), expected[i])));
}

TEST_CASE("[F02] the gradients of a block's parameters are there when its backward has ended", "[block]") {
  const auto events = std::make_shared<Events>();
  Net net;
  const auto log = watch(*net, events);
  int missing = 0, seen = 0;
  log->on_after_backward = [&](const troupe::BlockCall& call) {
    for (const auto& parameter : call.block->block_module().parameters()) {
      ++seen;
      if (!parameter.grad().defined()) ++missing;
    }
  };
  net(torch::tensor({{1, 2, 3}})).sum().backward();
  CHECK(seen == 1 + 2 * 6 + 2 * 4 + 1 + 2 * 6);
  CHECK(missing == 0);
}

TEST_CASE("[F02] several outputs make one backward, whichever of them are used", "[block]") {
  const auto events = std::make_shared<Events>();
  Many many;
  watch(*many, events);
  const auto a = torch::randn({2, 4}, torch::requires_grad()), b = torch::randn({2, 4}, torch::requires_grad());
  const auto extra = torch::randn({2, 4}, torch::requires_grad());
  const auto [first, list, third, last] = many(std::vector{a, b}, extra);
  CHECK(*events == Events{"before_forward Many", "after_forward Many"});
  CHECK((last.first.requires_grad() == false));
  CHECK(last.second == 7);
  events->clear();
  const Events once{"before_backward Many", "after_backward Many"};
  SECTION("all") {
    (first + list[0] + list[1] + *third).sum().backward();
    CHECK((a.grad().defined() && b.grad().defined() && extra.grad().defined()));
    CHECK(*events == once);
  }
  SECTION("one that leads past the parameters") {
    list[1].sum().backward();
    CHECK((torch::equal(b.grad(), torch::full({2, 4}, 3.0))));
    CHECK((!many->fc->weight.grad().defined()));
    CHECK(*events == once);
  }
  SECTION("one that was an input") {
    third->sum().backward();
    CHECK((torch::equal(extra.grad(), torch::ones({2, 4}))));
    CHECK(*events == once);
  }
  SECTION("none") {
    (a * 2).sum().backward();
    CHECK(events->empty());
  }
  SECTION("default argument") {
    events->clear();
    std::get<0>(many(std::vector{a, b})).sum().backward();
    CHECK(events->size() == 4);
  }
}

TEST_CASE("[F02] each call of a block has a backward of its own", "[block]") {
  const auto events = std::make_shared<Events>();
  FeedForward block;
  const auto log = watch(*block, events);
  const auto x = torch::randn({2, 4}, torch::requires_grad());
  block(block(x)).sum().backward();
  CHECK(*events == Events{"before_forward FeedForward", "after_forward FeedForward", "before_forward FeedForward 2",
                          "after_forward FeedForward 2", "before_backward FeedForward 2",
                          "after_backward FeedForward 2", "before_backward FeedForward", "after_backward FeedForward"});
}

TEST_CASE("[F02] a block whose inputs need no gradient ends with the block around it", "[block]") {
  const auto events = std::make_shared<Events>();
  Gate gate;
  watch(*gate, events);
  const auto x = torch::randn({2, 4}, torch::requires_grad());
  const auto before = x * 1;
  before.register_hook([&](const at::Tensor&) { events->push_back("what comes after the block"); });
  const auto loss = gate(before).sum();
  events->clear();
  loss.backward();
  CHECK(*events == Events{"before_backward Gate", "before_backward inner", "after_backward inner",
                          "after_backward Gate", "what comes after the block"});
}

TEST_CASE("[F02] a call that is not differentiated has no backward hooks", "[block]") {
  const auto events = std::make_shared<Events>();
  Net net;
  watch(*net, events);
  net->set_block_name("net");
  SECTION("under NoGradGuard") {
    const torch::NoGradGuard no_grad;
    net(torch::tensor({{1, 2}}));
    CHECK(events->size() == 12);
    CHECK(events->back() == "after_forward- net");
  }
  SECTION("a frozen model") {
    for (auto& parameter : net->parameters()) parameter.set_requires_grad(false);
    net(torch::tensor({{1, 2}}));
    CHECK(events->size() == 12);
    CHECK(events->back() == "after_forward- net");
  }
  SECTION("in eval mode it may still be differentiated") {
    net->eval();
    net(torch::tensor({{1, 2}})).sum().backward();
    CHECK(events->size() == 24);
  }
  SECTION("not called at all") {
    net->words(torch::tensor({{1, 2}})).sum().backward();
    CHECK(*events ==
          Events{"before_forward words", "after_forward words", "before_backward words", "after_backward words"});
  }
}

TEST_CASE("[F02] gradients of parameters alone begin and end the blocks that they go through", "[block]") {
  const auto events = std::make_shared<Events>();
  Layer layer;
  watch(*layer, events);
  const auto x = torch::randn({2, 4}, torch::requires_grad());
  const auto loss = layer(x).sum();
  events->clear();
  const auto gradients = torch::autograd::grad({loss}, {layer->ff->up->weight});
  CHECK((gradients[0].defined() && !x.grad().defined() && !layer->ff->up->weight.grad().defined()));
  CHECK(*events == Events{"before_backward Layer", "before_backward ff", "after_backward ff", "after_backward Layer"});
}

TEST_CASE(
    "[F02] a tensor that leaves by a member is seen by the nested block that it comes from, and by those around it",
    "[block]") {
  struct AuxImpl : torch::nn::Module {
    AuxImpl() : ff(register_module("ff", FeedForward())) {}
    at::Tensor forward(const at::Tensor& x) {
      aux = ff(x);
      return x * 2;
    }
    FeedForward ff;
    at::Tensor aux;
  };
  const auto events = std::make_shared<Events>();
  const auto block = std::make_shared<troupe::Block<AuxImpl>>();
  watch(*block, events);
  block->forward(torch::randn({2, 4}));
  events->clear();
  block->aux.sum().backward();
  CHECK(*events == Events{"before_backward Aux", "before_backward ff", "after_backward ff", "after_backward Aux"});
}

TEST_CASE("[F02] a graph may be run backward twice", "[block]") {
  const auto events = std::make_shared<Events>();
  Layer layer;
  watch(*layer, events);
  const auto loss = layer(torch::randn({2, 4})).sum();
  events->clear();
  loss.backward({}, /*retain_graph=*/true);
  const auto first = *events;
  CHECK(first == Events{"before_backward Layer", "before_backward ff", "after_backward ff", "after_backward Layer"});
  events->clear();
  loss.backward();
  CHECK(*events == first);
}

TEST_CASE("[F02] a backward that failed leaves the next one whole", "[block]") {
  const auto events = std::make_shared<Events>();
  Layer layer;
  watch(*layer, events);
  const auto x = torch::randn({2, 4}, torch::requires_grad());
  bool fail = true;
  const auto passed = x * 1;
  passed.register_hook([&](const at::Tensor&) {
    if (fail) throw std::runtime_error("on purpose");
  });
  const auto loss = layer(passed).sum();
  CHECK_THROWS_WITH(loss.backward({}, /*retain_graph=*/true), Catch::Contains("on purpose"));
  fail = false;
  events->clear();
  loss.backward();
  CHECK(*events == Events{"before_backward Layer", "before_backward ff", "after_backward ff", "after_backward Layer"});
}

TEST_CASE("[F02] outputs that are inputs or parameters keep their gradients and gather no hooks", "[block]") {
  const auto events = std::make_shared<Events>();
  SECTION("an input") {
    Keep keep;
    watch(*keep, events);
    const auto x = torch::ones({2}, torch::requires_grad());
    for (int i = 0; i < 3; ++i) (keep(x) * 2).sum().backward();
    CHECK((torch::equal(x.grad(), torch::full({2}, 6.0))));
    CHECK(events->size() == 12);
    CHECK(torch::autograd::impl::hooks(x).empty());
  }
  SECTION("a parameter") {
    HandOut block;
    watch(*block, events);
    for (int i = 0; i < 3; ++i) block(true).sum().backward();
    CHECK((torch::equal(block->weight.grad(), torch::full({3}, 3.0))));
    CHECK(events->size() == 12);
    CHECK(torch::autograd::impl::hooks(block->weight).empty());
  }
}

TEST_CASE("[F02] a hooked block must not change its input in place, and LibTorch says so", "[block]") {
  InPlace block;
  const auto x = torch::randn({4}, torch::requires_grad());
  CHECK_NOTHROW(block(x * 1).sum().backward());
  watch(*block, std::make_shared<Events>());
  CHECK_THROWS_WITH(block(x * 1), Catch::Contains("modified inplace"));
  const torch::NoGradGuard no_grad;
  CHECK_NOTHROW(block(x * 1));
}

TEST_CASE("[F02] hooks of one block nest: the last one added is the innermost", "[block]") {
  const auto events = std::make_shared<Events>();
  Keep keep;
  keep->add_hook(std::make_shared<Log>(events, "outer "));
  keep->add_hook(std::make_shared<Log>(events, "inner "));
  keep(torch::ones({1}, torch::requires_grad())).backward();
  CHECK(*events == Events{"outer before_forward Keep", "inner before_forward Keep", "inner after_forward Keep",
                          "outer after_forward Keep", "outer before_backward Keep", "inner before_backward Keep",
                          "inner after_backward Keep", "outer after_backward Keep"});
}

namespace {

struct Bf16 final : troupe::BlockHook {
  at::Tensor map_input(const troupe::BlockCall&, const at::Tensor& input) override {
    return input.is_floating_point() ? input.to(at::kBFloat16) : input;
  }
  at::Tensor map_output(const troupe::BlockCall&, const at::Tensor& output) override { return output.to(at::kFloat); }
};

struct Twice final : troupe::BlockRunner {
  std::function<void()> run(const troupe::BlockCall& call, const std::shared_ptr<troupe::BlockBody>& body) override {
    body->keep();
    body->run();
    return [&again = again, body] {
      const troupe::BlockCalls::RecomputeScope scope;
      body->run();
      ++again;
    };
  }
  int again = 0;
};

}  // namespace

TEST_CASE("[F02] hooks may replace inputs and outputs, and are differentiated", "[block]") {
  Scale scale;
  scale->add_hook(std::make_shared<Bf16>());
  const auto x = torch::full({2}, 1.001, torch::requires_grad());
  const auto y = scale(x, 3.0);
  CHECK((y.scalar_type() == at::kFloat));
  CHECK((torch::equal(y, torch::full({2}, 3.0))));  // bf16 has no 1.001
  y.sum().backward();
  CHECK((torch::equal(x.grad(), torch::full({2}, 3.0))));
}

TEST_CASE("[F02] a runner may run the body again, where only the forward hooks inside come again", "[block]") {
  const auto events = std::make_shared<Events>();
  Layer layer;
  watch(*layer, events);
  const auto runner = std::make_shared<Twice>();
  layer->set_runner(runner);
  const auto loss = layer(torch::randn({2, 4}, torch::requires_grad())).sum();
  events->clear();
  {
    const torch::AutoGradMode with_grad(true);
    loss.backward();
  }
  CHECK(runner->again == 1);
  CHECK(*events == Events{"before_backward Layer", "before_forward ff 2 again", "after_forward- ff 2 again",
                          "before_backward ff", "after_backward ff", "after_backward Layer"});
}

TEST_CASE("[F02] a graph outlives its block", "[block]") {
  const auto events = std::make_shared<Events>();
  const auto x = torch::randn({2, 4}, torch::requires_grad());
  at::Tensor loss;
  {
    Layer layer;
    watch(*layer, events);
    loss = layer(x).sum();
    events->clear();
  }
  loss.backward();
  CHECK((x.grad().defined()));
  CHECK(events->empty());
}

TEST_CASE("[F02] a clone of a block's module has no hooks, and a model's clone has blocks of its own", "[block]") {
  struct ModelImpl : torch::nn::Cloneable<ModelImpl> {
    ModelImpl() { reset(); }
    void reset() override { fc = register_module("fc", std::make_shared<troupe::Block<torch::nn::LinearImpl>>(2, 2)); }
    at::Tensor forward(const at::Tensor& x) { return fc->forward(x); }
    std::shared_ptr<troupe::Block<torch::nn::LinearImpl>> fc;
  };
  const auto events = std::make_shared<Events>();
  ModelImpl model;
  model.fc->add_hook(std::make_shared<Log>(events));
  const auto copy = std::dynamic_pointer_cast<ModelImpl>(model.clone());
  const auto x = torch::randn({2, 2});
  CHECK((torch::equal(copy->forward(x), model.fc->LinearImpl::forward(x))));
  CHECK(events->empty());
  const auto plain = model.fc->clone();
  CHECK(dynamic_cast<troupe::BlockCalls*>(plain.get()) == nullptr);
  CHECK((torch::equal(plain->named_parameters()["weight"], model.fc->weight)));
}
