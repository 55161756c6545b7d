#include "tensor_io/checkpoint/state_matching.hpp"

#include <torch/torch.h>

#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"

using namespace troupe;
using Catch::Contains;

TEST_CASE("[C01] saved values reach live parameters by name, also views that require gradients") {
  auto flat = torch::zeros(6);
  auto weight = flat.slice(0, 0, 4).view({2, 2}).set_requires_grad(true),
       bias = flat.slice(0, 4, 6).set_requires_grad(true);
  auto counter = torch::zeros({}, torch::kLong);
  copy_state({{"bias", torch::tensor({5.f, 6.f})},
              {"counter", torch::tensor(std::int64_t{7})},
              {"weight", torch::tensor({{1.f, 2.f}, {3.f, 4.f}})}},
             {{"weight", weight}, {"bias", bias}, {"counter", counter}}, "loading the model");
  CHECK(torch::equal(flat, torch::tensor({1.f, 2.f, 3.f, 4.f, 5.f, 6.f})));
  CHECK(counter.item<std::int64_t>() == 7);
  CHECK(weight.requires_grad());
}

TEST_CASE("[C03] a state that does not fit names what is missing, extra, renamed and different, and changes nothing") {
  auto live_weight = torch::zeros({2, 3});
  const NamedTensors live = {{"weight", live_weight}, {"bias", torch::zeros(3)}};
  auto message = [&](const NamedTensors& saved) -> std::string {
    try {
      copy_state(saved, live, "loading the model");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::mismatch);
      CHECK_FALSE(error.report().remedy.empty());
      return error.what();
    }
    return {};
  };
  CHECK_THAT(message({{"weight", torch::ones({2, 3})}}), Contains("missing in the checkpoint: 'bias'"));
  CHECK_THAT(message({{"weight", torch::ones({2, 3})}, {"bias", torch::ones(3)}, {"more", torch::ones(1)}}),
             Contains("not in the program: 'more'"));
  CHECK_THAT(message({{"kernel", torch::ones({2, 3})}, {"bias", torch::ones(3)}}),
             Contains("'kernel' is now 'weight'"));
  CHECK_THAT(message({{"weight", torch::ones({3, 2})}, {"bias", torch::ones(3)}}),
             Contains("'weight'") && Contains("(3, 2)") && Contains("(2, 3)") && Contains("transposed"));
  CHECK_THAT(message({{"weight", torch::ones({2, 3})}, {"bias", torch::ones(3, torch::kHalf)}}),
             Contains("Half (3)") && Contains("Float (3)"));
  CHECK(torch::equal(live_weight, torch::zeros({2, 3})));
}

TEST_CASE("of many differences the first three are named") {
  NamedTensors live;
  for (int i = 0; i < 9; ++i) live.emplace_back("layer." + std::to_string(i), torch::zeros(i + 1));
  const auto difference = compare_state({}, live);
  CHECK_THAT(difference.describe(), Contains("'layer.0', 'layer.1', 'layer.2' and 6 more"));
  CHECK_FALSE(difference.empty());
  CHECK(compare_state(live, live).empty());
}

TEST_CASE("equal shapes are not taken for a renaming where it could be another") {
  const auto difference =
      compare_state({{"a", torch::zeros(2)}, {"b", torch::zeros(2)}}, {{"x", torch::zeros(2)}, {"y", torch::zeros(2)}});
  CHECK(difference.renamed.empty());
  CHECK(difference.missing.size() == 2);
  CHECK(difference.extra.size() == 2);
}

TEST_CASE("a prefix selects a part of a state") {
  const NamedTensors all = {
      {"model.a", torch::zeros(1)}, {"optimizer.a.m", torch::zeros(1)}, {"model.b", torch::zeros(1)}};
  const auto model = with_prefix(all, "model.");
  REQUIRE(model.size() == 2);
  CHECK(model[1].first == "model.b");
}
