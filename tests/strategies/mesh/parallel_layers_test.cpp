// Layers that ranks share, beside the same layers on one.
#include "tensor_io/layers/parallel_layers.hpp"

#include "strategies/mesh/tensor_plan.hpp"
#include "tensor_io/layers/autocast.hpp"
#include "tensor_io/layers/deferred_weights.hpp"
#include "tensor_io/layers/dropout.hpp"
#include "tests/catch.hpp"
#include "tests/support/rank_threads.hpp"

using namespace troupe;

namespace {

/// An MLP with an embedding in front and its rows as output layer behind, and dropout before, between and behind layers
/// that are shared.
struct SharedMlpImpl : torch::nn::Module {
  troupe::nn::Embedding rows{nullptr};
  troupe::nn::TokenSplit token_split{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  troupe::nn::Linear up{nullptr}, down{nullptr}, head{nullptr};
  troupe::nn::Dropout first{nullptr}, hidden{nullptr}, last{nullptr};
  explicit SharedMlpImpl() {
    torch::manual_seed(3);
    rows = register_module("rows", troupe::nn::Embedding(12, 6));
    token_split = register_module("token_split", troupe::nn::TokenSplit());
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
    up = register_module("up", troupe::nn::Linear(6, 8));
    down = register_module("down", troupe::nn::Linear(8, 6));
    head = register_module("head", troupe::nn::Linear(6, 4));
    const auto position = std::make_shared<ForwardPosition>();
    for (auto& [name, dropout] :
         std::map<std::string, troupe::nn::Dropout*>{{"first", &first}, {"hidden", &hidden}, {"last", &last}}) {
      *dropout = register_module(name, troupe::nn::Dropout(0.3));
      (*dropout)->place(position, static_cast<std::int64_t>(name.size()));
    }
  }
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& ids) {
    auto x = token_split(first(rows(ids)));
    x = x + last(down(hidden(torch::tanh(up(norm(x))))));
    return {rows->scores(x), head(x)};
  }
};

constexpr const char* kMlpPlan =
    "rows: vocabulary, up: column, down: row, head: gather, norm: sequence, first: whole, hidden: column, last: "
    "sequence";

at::Tensor mlp_loss(SharedMlpImpl& model) {
  const auto ids = torch::randint(12, {3, 4}, at::detail::createCPUGenerator(4), at::TensorOptions().dtype(at::kLong));
  const auto [scores, outputs] = model.forward(ids);
  const auto weigh = [](const at::Tensor& x) {
    return (x * torch::arange(x.numel(), at::kFloat).view(x.sizes()).sin()).pow(2).mean();
  };
  return weigh(scores) + weigh(outputs);
}

std::string plan_error(const std::string& text) {
  try {
    SharedMlpImpl model;
    const auto communicator = std::make_shared<LocalRendezvous>();
    CommunicatorOptions options;
    options.rendezvous = communicator;
    const std::shared_ptr<Communicator> alone = make_communicator(options);
    share_layers(model, parse_tensor_plan(text), {alone, true}, true);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE(
    "[X03] column, row, gathered and vocabulary-parallel layers give one rank's loss and gradients, on 2 and 4 ranks, "
    "with what dropout drops on one") {
  const int ranks = GENERATE(2, 4);
  const bool sequence = GENERATE(false, true);
  SharedMlpImpl whole;
  const auto expected = mlp_loss(whole);
  expected.backward();
  const auto failures = test::run_ranks_catching({test::all_backends()[0], ranks}, [&](Communicator& communicator) {
    std::shared_ptr<SharedMlpImpl> built;
    {
      static std::mutex generator;
      std::lock_guard lock(generator);
      built = std::make_shared<SharedMlpImpl>();
    }
    auto& model = *built;
    const TensorParallel group{std::shared_ptr<Communicator>(&communicator, [](auto*) {}), sequence};
    const auto shared = share_layers(model, parse_tensor_plan(kMlpPlan), group, true);
    const auto loss = mlp_loss(model);
    loss.backward();
    for (const auto& name : shared.partial)
      communicator.all_reduce(model.named_parameters()[name].mutable_grad().view(-1));
    {
      CHECK((std::abs(loss.item<double>() - expected.item<double>()) < 1e-6));
      CHECK((model.up->weight.size(0) == 8 / ranks));
      CHECK((model.down->weight.size(1) == 8 / ranks));
      CHECK((model.rows->weight.size(0) == 12 / ranks));
      for (const auto& item : whole.named_parameters()) {
        const auto mine = model.named_parameters()[item.key()].grad();
        auto wanted = item.value().grad();
        if (const auto cut = shared.cuts.find(item.key()); cut != shared.cuts.end()) {
          std::vector<at::Tensor> parts;
          for (const auto& run : cut->second.runs(wanted.size(cut->second.dim), item.key()))
            parts.push_back(wanted.narrow(cut->second.dim, run.whole, run.length));
          wanted = at::cat(parts, cut->second.dim);
        }
        test::require(at::allclose(mine, wanted, 1e-4, 1e-6), "the gradient of " + item.key() + " is one rank's");
      }
    }
  });
  for (const auto& failure : failures) CHECK((failure ? failure->text : "") == "");
}

TEST_CASE("[X03] a plan that can't be is refused on one line, naming the entry") {
  CHECK_THAT(plan_error("up"), Catch::Contains("'up' does not say how"));
  CHECK_THAT(plan_error("up: colunm"),
             Catch::Contains("'colunm' is not one of column, gather, row, vocabulary, sequence, whole"));
  CHECK_THAT(plan_error("up: row/2"), Catch::Contains("only column takes a number of parts"));
  CHECK_THAT(plan_error("upp: column"), Catch::Contains("'upp' matches no module"));
  CHECK_THAT(plan_error("norm: column"), Catch::Contains("norm can't be shared this way"));
  CHECK_THAT(plan_error("hidden: row"), Catch::Contains("hidden is a dropout"));
  CHECK_THAT(plan_error("up: whole"), Catch::Contains("up can't be shared this way"));
  CHECK_THAT(plan_error("rows: column"), Catch::Contains("rows can't be shared this way"));
  CHECK_THAT(plan_error("up: column, *: column"),
             Catch::Contains("can't be shared this way") || Catch::Contains("twice"));
  CHECK((plan_error("upp?: column, {").find('\n') == std::string::npos));
  CHECK((plan_error("{up: column, upp?: row}").empty()));
  CHECK_THROWS_WITH((ParameterCut{0, 3, 2, 0}.runs(9, "layer.weight")),
                    Catch::Contains("layer.weight has 9 in 3 parts"));
}

TEST_CASE("[X03] a plan that does not say which part of its input a dropout has is refused") {
  const auto error_with = [](const std::string& plan, double p, bool sequence) {
    const auto failures = test::run_ranks_catching({test::all_backends()[0], 2}, [&](Communicator& communicator) {
      struct ModelImpl : torch::nn::Module {
        troupe::nn::Linear up = register_module("up", troupe::nn::Linear(4, 4));
        troupe::nn::Dropout drop = register_module("drop", troupe::nn::Dropout());
      } model;
      model.drop->options.p(p);
      share_layers(model, parse_tensor_plan(plan),
                   {std::shared_ptr<Communicator>(&communicator, [](auto*) {}), sequence}, false);
    });
    return failures[0] ? failures[0]->text : "";
  };
  CHECK_THAT(error_with("up: column", 0.5, false),
             Catch::Contains("'drop' drops elements") && Catch::Contains("drop: whole"));
  CHECK_THAT(error_with("up: gather", 0.5, true), Catch::Contains("'drop' drops elements"));
  CHECK(error_with("up: column, drop: column", 0.5, true) == "");
  CHECK(error_with("up: gather", 0.5, false) == "");
  CHECK(error_with("up: column", 0, true) == "");
}

TEST_CASE("[X02] a linear layer's backward leaves the weight's gradient for later, and the same comes of it") {
  torch::manual_seed(2);
  troupe::nn::Linear layer(5, 3);
  const auto x = torch::randn({4, 2, 5}).requires_grad_(true);
  const auto loss = [&] { return (layer(x).pow(2)).sum(); };
  loss().backward();
  const auto of_x = x.grad().clone(), of_weight = layer->weight.grad().clone(), of_bias = layer->bias.grad().clone();
  for (auto* tensor :
       {&x, static_cast<const at::Tensor*>(&layer->weight), static_cast<const at::Tensor*>(&layer->bias)})
    tensor->mutable_grad() = at::Tensor();
  layer->may_defer_weight(true);
  const auto value = loss();
  DeferredWeights later;
  {
    const DeferredWeights::Scope scope(later);
    value.backward();
  }
  CHECK((at::allclose(x.grad(), of_x)));
  CHECK((at::allclose(layer->bias.grad(), of_bias)));
  CHECK_FALSE(layer->weight.grad().defined());
  CHECK((later.count() == 1));
  const auto touched = later.run();
  CHECK((touched.size() == 1 && touched[0].is_same(layer->weight)));
  CHECK((at::allclose(layer->weight.grad(), of_weight)));
  CHECK((later.count() == 0));
}

TEST_CASE("[X02] [X03] under autocast a layer's result is of that dtype, bias and all, however ranks share it") {
  const auto dtype = GENERATE(at::kBFloat16, at::kHalf);
  troupe::nn::Linear alone(6, 4);
  alone->may_defer_weight(true);
  {
    const AutocastGuard autocast(true, dtype);
    CHECK((alone(torch::randn({2, 6})).scalar_type() == dtype));
  }
  const auto failures = test::run_ranks_catching({test::all_backends()[0], 2}, [&](Communicator& communicator) {
    SharedMlpImpl model;
    const TensorParallel group{std::shared_ptr<Communicator>(&communicator, [](auto*) {}), false};
    share_layers(model,
                 parse_tensor_plan("up: column, down: row, head: gather, first: whole, hidden: column, last: whole"),
                 group, true);
    const AutocastGuard autocast(true, dtype);
    const auto x = torch::ones({2, 6});
    const auto cut = model.up(x), whole = model.down(cut);
    test::require(cut.scalar_type() == dtype, "column");
    test::require(whole.scalar_type() == dtype, "row");
    test::require(model.head(x).scalar_type() == dtype, "gather");
  });
  for (const auto& failure : failures) CHECK((failure ? failure->text : "") == "");
}
