// The parameters of a model on a mesh, and their gradients, without ranks.
#include "strategies/mesh/mesh_parameters.hpp"

#include <cmath>

#include "strategies/mesh/flat_gradients.hpp"
#include "tests/catch.hpp"

using namespace troupe;

namespace {

/// A head of 3 x 2 outside of blocks, behind two blocks of 2 x 2.
struct TwoBlocksImpl : torch::nn::Module {
  TwoBlocksImpl() {
    for (const auto* name : {"first", "second"}) blocks.emplace_back(register_module(name, linear(2, 2)));
    head = register_module("head", linear(2, 3));
  }
  static torch::nn::Linear linear(std::int64_t in, std::int64_t out) {
    return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
  }
  std::vector<torch::nn::Linear> blocks;
  torch::nn::Linear head{nullptr};
};

bool trains(const at::Tensor& parameter) { return parameter.requires_grad(); }

StageCut two_stages() {
  StageCut cut({"first", "second"}, 2, 1);
  cut.cut_at({0, 1, 2});
  return cut;
}

}  // namespace

TEST_CASE("[X02] a rank keeps the parameters of its stages, and the model has all of them again if not all join") {
  TwoBlocksImpl model;
  const auto first = model.blocks[0]->weight.detach().clone();
  {
    MeshParameters parameters;
    parameters.collect(model, trains);
    parameters.find_blocks(two_stages());
    CHECK((parameters.numel_by_block(two_stages()) == std::vector<double>{4, 4}));
    parameters.release_other_stages(two_stages(), 1);
    CHECK((parameters.elsewhere() == std::set<std::string>{"first.weight"}));
    CHECK(parameters.held().size() == 2);
    CHECK((parameters.layout().at(0).shape == std::vector<std::int64_t>{2, 2}));
    CHECK(*parameters.index_of("head.weight") == *parameters.index_of(model.head->weight));
    CHECK_FALSE(parameters.index_of("third.weight"));
  }
  CHECK(at::equal(model.blocks[0]->weight, first));
}

TEST_CASE("[X02] a backward marks the parameters that it reaches, unless its samples have no weight") {
  TwoBlocksImpl model;
  MeshParameters parameters;
  parameters.collect(model, trains);
  model.blocks[1]->weight.sum().backward();
  CHECK((parameters.used() == std::vector<bool>{false, true, false}));
  CHECK(parameters.mark_uses(false));
  model.head->weight.sum().backward();
  CHECK((parameters.used() == std::vector<bool>{false, true, false}));
  CHECK_FALSE(parameters.mark_uses(true));
  parameters.clear_uses();
  parameters.mark_used(model.head->weight);
  CHECK((parameters.used() == std::vector<bool>{false, false, true}));
}

TEST_CASE("[X02] gradients are views of one tensor, those outside of blocks first, and only what is here has one") {
  TwoBlocksImpl model;
  MeshParameters parameters;
  parameters.collect(model, trains);
  parameters.find_blocks(two_stages());
  const FlatGradients whole(parameters.all(), at::kCPU);
  parameters.release_other_stages(two_stages(), 1);
  const FlatGradients gradients(parameters.all(), at::kCPU);
  CHECK(gradients.outside_of_blocks().numel() < gradients.all().numel());
  CHECK(gradients.all().numel() < whole.all().numel());
  CHECK_FALSE(gradients.views().at(0).defined());

  gradients.show();
  CHECK_FALSE(model.blocks[0]->weight.grad().defined());
  (model.head->weight.sum() * 2 + model.blocks[1]->weight.sum()).backward();
  CHECK(gradients.outside_of_blocks().sum().item<double>() == 12);
  CHECK(gradients.all().sum().item<double>() == 16);
  CHECK(gradients.first_not_finite() == -1);
  gradients.views().at(2).view(-1)[5].fill_(NAN);
  CHECK(gradients.first_not_finite() == 2);

  gradients.show({false, true, false});
  CHECK(model.blocks[1]->weight.grad().is_same(gradients.views().at(1)));
  CHECK_FALSE(model.head->weight.grad().defined());
  gradients.hide();
  CHECK_FALSE(model.blocks[1]->weight.grad().defined());
}
