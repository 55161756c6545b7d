#include "launch/model/load_weights.hpp"

#include <torch/torch.h>

#include "launch/program/job_of.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/plain_archive.hpp"
#include "tensor_io/checkpoint/safetensors.hpp"
#include "tensor_io/data/datasets.hpp"
#include "tests/catch.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/judged_net.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;
using namespace troupe::testing;
using Catch::Contains;

namespace {

// Trains on two ranks, with checkpoints in `folder`; the whole model at the end.
NamedTensors train_weights(const std::string& strategy, const std::string& folder) {
  Config config;
  config.ranks = 2;
  config.strategy = strategy;
  config.batch_size = 8;
  config.epochs = 2;
  config.lr = 0.1;
  config.run_dir = "";
  config.checkpoint_dir = folder;
  const auto data = parted_data(3, 32, 4);
  NamedTensors whole;
  const auto errors = run_program(2, config, [&](Rank& rank) {
    auto net = rank.distribute([] { return JudgedNet(); });
    const auto optimizer = rank.make_optimizer(*net);
    const auto loss = [&](const Batch& batch) { return judged_loss(net, batch); };
    rank.keep_checkpoints(*optimizer);
    rank.validate_on(data, loss);
    for (const auto& batch : rank.loader(data)) {
      rank.backward(loss(batch));
      rank.step(*optimizer);
    }
    auto state = rank.state_dict(*optimizer);
    if (rank.is_main()) whole = std::move(state);
  });
  for (const auto& error : errors) CHECK(error == "");
  return whole;
}

void check_has(const torch::nn::Module& model, const NamedTensors& weights) {
  auto live = model.named_parameters();
  for (const auto& item : model.named_buffers()) live.insert(item.key(), item.value());
  REQUIRE(live.size() == weights.size());
  for (const auto& [name, tensor] : weights) {
    INFO(name);
    REQUIRE(live.contains(name));
    CHECK(live[name].equal(tensor));
  }
}

std::string weights_refusal(torch::nn::Module& model, const std::string& path, const LoadOptions& options,
                            ErrorCode code) {
  return error_of(code, [&] { load_weights(model, path, options); });
}

}  // namespace

TEST_CASE("[U05] weights of a sharded or whole checkpoint load without a rank: parameters and buffers, to the bit") {
  const ScratchDirectory folder;
  const auto whole = train_weights(GENERATE("ddp", "fsdp"), folder.path());
  JudgedNet net;
  CHECK_THAT(load_weights(net, folder.path()), Contains("weights from " + folder.path() + ": 9 of 9 tensors"));
  CHECK(net->is_training());
  check_has(*net, whole);
  JudgedNet other;
  other->eval();
  load_weights(*other, folder / "step-00000008");
  CHECK_FALSE(other->is_training());
  check_has(*other, whole);
  CHECK_THAT(load_weights(other, folder / "best"), Contains("9 of 9 tensors"));
}

TEST_CASE("[U05] weights load from the files that Python writes, and dtypes are converted") {
  const ScratchDirectory folder;
  JudgedNet source;
  NamedTensors half, whole;
  for (const auto& item : source->named_parameters())
    half.emplace_back(item.key(), item.value().detach().to(torch::kBFloat16));
  for (const auto& item : source->named_buffers()) half.emplace_back(item.key(), item.value() + 1);
  for (const auto& [name, tensor] : half)
    whole.emplace_back(name, tensor.is_floating_point() ? tensor.to(torch::kFloat) : tensor);
  save_safetensors(folder / "m.safetensors", half);
  save_plain_archive(folder / "m.pt", half);
  for (const std::string name : {"m.safetensors", "m.pt"}) {
    JudgedNet net;
    load_weights(net, folder / name);
    check_has(*net, whole);
  }
}

TEST_CASE("[U05] weights that differ are refused with the first differences, and options take what fits") {
  const ScratchDirectory folder;
  JudgedNetImpl net;
  const auto before = net.head->weight.detach().clone();
  save_safetensors(folder / "m.safetensors",
                   {{"encoder.weight", torch::ones({6, 4})}, {"encoder.bias", torch::ones(6)}});
  const auto path = folder / "m.safetensors";
  CHECK_THAT(weights_refusal(net, path, {}, ErrorCode::mismatch),
             Contains("load_weights " + path) && Contains("'body.bias'") && Contains("LoadOptions::rename") &&
                 !Contains("init_"));
  CHECK_THAT(weights_refusal(net, path, {"encodr.=body.", true}, ErrorCode::usage),
             Contains("rename: no tensor name in the file begins with 'encodr.'"));
  CHECK_THAT(weights_refusal(net, path, {"body.", true}, ErrorCode::usage), Contains("rename") && Contains("old=new"));
  CHECK_THAT(weights_refusal(net, path, {"", true}, ErrorCode::mismatch), Contains("no tensor fits"));
  CHECK_THAT(weights_refusal(net, folder / "nothing", {}, ErrorCode::usage),
             Contains("load_weights") && Contains("is not there"));
  CHECK(net.head->weight.equal(before));
  CHECK_THAT(load_weights(net, path, {"encoder.=body.", true}), Contains("2 of 9 tensors"));
  CHECK(net.body->weight.equal(torch::ones({6, 4})));
  CHECK(net.head->weight.equal(before));
}
