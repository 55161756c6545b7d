#include "actors/block/wrap_policy.hpp"

#include <torch/torch.h>

#include "actors/block/block.hpp"
#include "tests/catch.hpp"

namespace {

struct AttentionImpl : torch::nn::Module {
  AttentionImpl() : qkv(register_module("qkv", torch::nn::Linear(torch::nn::LinearOptions(4, 12).bias(false)))) {}
  at::Tensor forward(const at::Tensor& x) { return qkv(x); }
  torch::nn::Linear qkv;
};
TROUPE_BLOCK(Attention);

struct LayerImpl : torch::nn::Module {
  LayerImpl()
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})))),
        attention(register_module("attention", Attention())) {}
  at::Tensor forward(const at::Tensor& x) { return attention(norm(x)); }
  torch::nn::LayerNorm norm;
  Attention attention;
};
TROUPE_BLOCK(Layer);

struct ModelImpl : torch::nn::Module {
  explicit ModelImpl(bool tied = false) {
    words = register_module("words", torch::nn::Embedding(10, 4));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < 2; ++i) layers->push_back(Layer());
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(4, 10).bias(false)));
    if (tied) head->register_parameter("weight2", words->weight);
  }
  at::Tensor forward(const at::Tensor& ids) { return words(ids); }
  torch::nn::Embedding words = nullptr;
  torch::nn::ModuleList layers = nullptr;
  torch::nn::Linear head = nullptr;
};
TROUPE_BLOCK(Model);

std::vector<std::string> described(const std::shared_ptr<torch::nn::Module>& model, const std::string& policy) {
  std::vector<std::string> lines;
  for (const auto& unit : troupe::wrap_units(model, troupe::parse_wrap_policy(policy))) {
    auto line = unit.name + ":";
    for (const auto& parameter : unit.parameters) {
      line += " " + parameter.name;
      for (const auto& alias : parameter.aliases) line += "=" + alias;
    }
    lines.push_back(line);
  }
  return lines;
}

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("[F02] units by block: each has what no block inside it has, the model takes the rest", "[wrap]") {
  CHECK(described(Model().ptr(), "block") ==
        Lines{": words.weight head.weight", "layers.0: layers.0.norm.weight layers.0.norm.bias",
              "layers.0.attention: layers.0.attention.qkv.weight", "layers.1: layers.1.norm.weight layers.1.norm.bias",
              "layers.1.attention: layers.1.attention.qkv.weight"});
  CHECK(described(Layer().ptr(), "block") == Lines{": norm.weight norm.bias", "attention: attention.qkv.weight"});
  CHECK(described(torch::nn::Linear(2, 2).ptr(), "block") == Lines{": weight bias"});
}

TEST_CASE("[F02] units by type, by name and by number of parameters", "[wrap]") {
  const Lines layers{": words.weight head.weight",
                     "layers.0: layers.0.norm.weight layers.0.norm.bias layers.0.attention.qkv.weight",
                     "layers.1: layers.1.norm.weight layers.1.norm.bias layers.1.attention.qkv.weight"};
  CHECK(described(Model().ptr(), "type:Layer") == layers);
  CHECK(described(Model().ptr(), "name:layers.*") == layers);
  CHECK(described(Model().ptr(), "numel:56") == layers);
  CHECK(described(Model().ptr(), "numel:57").size() == 1);
  CHECK(described(Model().ptr(), "numel:48").size() == 3);  // the attentions alone are large enough
  CHECK(described(Model().ptr(), "numel:48")[1] == "layers.0.attention: layers.0.attention.qkv.weight");
  CHECK(described(Model().ptr(), "none").size() == 1);
  CHECK(described(Model().ptr(), "type:Layer,Attention") == described(Model().ptr(), "block"));
  CHECK(described(Model().ptr(), "name:**.attention").size() == 3);
  CHECK(described(Model().ptr(), "name:layers.1,layers.0.attention").size() == 3);
}

TEST_CASE("[F02] every parameter is in exactly one unit", "[wrap]") {
  const auto policy =
      GENERATE(as<std::string>{}, "none", "block", "type:Attention", "numel:1", "numel:50", "name:layers.0");
  const auto model = Model().ptr();
  std::set<std::string> names;
  std::size_t count = 0;
  for (const auto& unit : troupe::wrap_units(model, troupe::parse_wrap_policy(policy))) {
    for (const auto& parameter : unit.parameters) {
      names.insert(parameter.name);
      ++count;
      CHECK(
          (model->named_parameters()[parameter.name].unsafeGetTensorImpl() == parameter.tensor.unsafeGetTensorImpl()));
    }
  }
  CHECK(count == model->named_parameters().size());
  CHECK(names.size() == count);
}

TEST_CASE("[F02] a shared parameter is in one unit, around all that use it", "[wrap]") {
  SECTION("in the model: embedding and head") {
    const auto lines = described(Model(true).ptr(), "block");
    CHECK(lines[0] == ": words.weight=head.weight2 head.weight");
  }
  SECTION("between two blocks: the enclosing unit has it") {
    Model model;
    auto first = model->layers[0]->as<Layer::Impl>(), second = model->layers[1]->as<Layer::Impl>();
    second->attention->qkv->register_parameter("tied", first->attention->qkv->weight);
    const auto lines = described(model.ptr(), "block");
    CHECK(lines[0] == ": words.weight layers.0.attention.qkv.weight=layers.1.attention.qkv.tied head.weight");
    CHECK(lines.size() == 4);  // layers.0.attention has none left
  }
  SECTION("inside one block: that has it") {
    Layer layer;
    layer->register_parameter("tied", layer->attention->qkv->weight);
    CHECK(described(layer.ptr(), "block") == Lines{": tied=attention.qkv.weight norm.weight norm.bias"});
  }
  SECTION("a plain module in two blocks: the enclosing unit has its parameters") {
    Model model;
    auto first = model->layers[0]->as<Layer::Impl>(), second = model->layers[1]->as<Layer::Impl>();
    second->register_module("borrowed", first->norm);
    CHECK(described(model.ptr(), "type:Layer")[0] ==
          ": words.weight layers.0.norm.weight layers.0.norm.bias head.weight");
  }
  SECTION("a block in two places: one unit under its first name") {
    Model model;
    model->register_module("again", model->layers[0]);
    CHECK(described(model.ptr(), "block") == described(Model().ptr(), "block"));
  }
}

TEST_CASE("[F02] a policy that can't be is refused with its reason", "[wrap]") {
  const auto refused = [](const std::string& policy, const std::string& reason) {
    CHECK_THROWS_WITH(described(Model().ptr(), policy), Catch::Contains(reason));
  };
  refused("layers", "there is no policy 'layers'");
  refused("block:3", "takes no value");
  refused("numel:many", "'many' is not a positive whole number");
  refused("numel:0", "not a positive whole number");
  refused("type:", "is empty");
  refused("name:a,,b", "is empty");
  refused("type:Linear", "the module layers.0.attention.qkv (Linear) is not a block");
  refused("name:words", "the module words (Embedding) is not a block");
  refused("type:Decoder", "no module of the model has this type; its blocks: Layer, Attention");
  refused("name:blocks.*", "no module of the model has this name; its blocks: layers.0, layers.0.attention, layers.1");
  CHECK_THROWS_WITH(described(torch::nn::Linear(2, 2).ptr(), "type:Layer"),
                    Catch::Contains("declare its layers with TROUPE_BLOCK"));
}

TEST_CASE("[F02] a star in a pattern stands for one name, two for any number", "[wrap]") {
  CHECK(troupe::matches_path("layers.*", "layers.0"));
  CHECK_FALSE(troupe::matches_path("layers.*", "layers.0.attention"));
  CHECK_FALSE(troupe::matches_path("layers.*", "layers"));
  CHECK(troupe::matches_path("layers.**", "layers.0.attention"));
  CHECK(troupe::matches_path("**.attention", "layers.0.attention"));
  CHECK(troupe::matches_path("layers.*.attention", "layers.11.attention"));
  CHECK_FALSE(troupe::matches_path("layers.1", "layers.11"));
}
