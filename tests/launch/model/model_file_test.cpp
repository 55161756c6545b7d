#include "launch/model/model_file.hpp"

#include <torch/torch.h>

#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/plain_archive.hpp"
#include "tensor_io/checkpoint/safetensors.hpp"
#include "tests/catch.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/scratch_directory.hpp"
#include "tests/support/training_state.hpp"

using namespace troupe;
using namespace troupe::testing;
using Catch::Contains;

namespace {

struct NetImpl : torch::nn::Module {
  torch::nn::Linear body = register_module("body", torch::nn::Linear(4, 3));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(3, 2));
};

std::string mismatch_of(torch::nn::Module& model, const InitialModelOptions& options, ErrorCode code) {
  return error_of(code, [&] { load_initial_model(model, options); });
}

}  // namespace

TEST_CASE("[F05] a model starts from a file of either format, and dtypes are converted") {
  const ScratchDirectory scratch;
  NetImpl source, target;
  NamedTensors half;
  for (const auto& item : source.named_parameters())
    half.emplace_back(item.key(), item.value().detach().to(torch::kBFloat16));
  save_safetensors(scratch / "m.safetensors", half);
  save_plain_archive(scratch / "m.pt", half);
  for (const std::string name : {"m.safetensors", "m.pt"}) {
    INFO(name);
    torch::NoGradGuard no_grad;
    for (auto& parameter : target.parameters()) parameter.zero_();
    CHECK_THAT(load_initial_model(target, {scratch / name, "", false}), Contains("4 of 4 tensors"));
    for (const auto& [key, tensor] : half) CHECK(target.named_parameters()[key].equal(tensor.to(torch::kFloat)));
  }
}

TEST_CASE("[R11] a model starts from a link to a file of either format, whatever the file is called") {
  const ScratchDirectory scratch;
  NetImpl source, target;
  NamedTensors tensors;
  for (const auto& item : source.named_parameters()) tensors.emplace_back(item.key(), item.value().detach());
  save_safetensors(scratch / "0a", tensors);
  save_plain_archive(scratch / "0b", tensors);
  std::filesystem::create_symlink("0a", scratch / "model.safetensors");
  std::filesystem::create_symlink("0b", scratch / "pytorch_model.bin");
  for (const std::string name : {"model.safetensors", "pytorch_model.bin", "0a", "0b"}) {
    INFO(name);
    torch::NoGradGuard no_grad;
    for (auto& parameter : target.parameters()) parameter.zero_();
    CHECK_THAT(load_initial_model(target, {scratch / name, "", false}), Contains("4 of 4 tensors"));
    for (const auto& [key, tensor] : tensors) CHECK(target.named_parameters()[key].equal(tensor));
  }
}

TEST_CASE("[F05] a model that differs on purpose takes what fits, and says what did not") {
  const ScratchDirectory scratch;
  NetImpl target;
  const auto body = torch::randn({3, 4}), before = target.head->weight.detach().clone();
  save_safetensors(scratch / "m.safetensors",
                   {{"encoder.weight", body}, {"encoder.bias", torch::ones(3)}, {"head.weight", torch::zeros({5, 3})}});
  const auto path = scratch / "m.safetensors";
  CHECK_THAT(mismatch_of(target, {path, "", false}, ErrorCode::mismatch),
             Contains("--init_rename") && Contains("'head.bias'"));
  CHECK_THAT(mismatch_of(target, {path, "encodr.=body.", true}, ErrorCode::usage), Contains("'encodr.'"));
  CHECK_THAT(mismatch_of(target, {path, "body.", true}, ErrorCode::usage), Contains("is not old=new"));
  const auto report = load_initial_model(target, {path, "encoder.=body.", true});
  CHECK_THAT(report,
             Contains("2 of 4 tensors") && Contains("'head.weight' is Float (5, 3)") && Contains("'head.bias'"));
  CHECK(target.body->weight.equal(body));
  CHECK(target.head->weight.equal(before));
}

TEST_CASE("[F05] a model starts from a checkpoint's model, without its optimizer") {
  const ScratchDirectory scratch;
  WholeStateWriter writer(scratch / "checkpoints", 3);
  writer.save(small_state(4), false);
  const auto model = read_model(scratch / "checkpoints");
  REQUIRE(model.size() == 3);
  CHECK(model[2].first == "weight");
  CHECK(read_model(scratch / "checkpoints/step-00000004", true).size() == 4);
  CHECK_THROWS_WITH(read_model(scratch.path()), Contains("is not a checkpoint and contains none"));
  CHECK_THROWS_WITH(read_model(scratch / "nowhere.pt"), Contains("is not there"));
}
