// The model of the gpt example.
#include "examples/gpt/gpt.hpp"
#include "tests/catch.hpp"

namespace {

GptOptions tiny(bool rotary, bool tied_head) {
  GptOptions options;
  options.vocab_size = 11;
  options.block_size = 8;
  options.n_layer = 2;
  options.n_head = 2;
  options.n_embd = 8;
  options.rotary = rotary;
  options.tied_head = tied_head;
  return options;
}

at::Tensor scores_of_last(Gpt& model, std::vector<std::int64_t> ids) {
  return model->forward(torch::tensor(ids, torch::kLong).unsqueeze(0))[0][static_cast<std::int64_t>(ids.size()) - 1];
}

}  // namespace

TEST_CASE("[E02] gpt's scores of a token depend on the tokens before it, on their order, and on none after it") {
  torch::manual_seed(1);
  const bool rotary = GENERATE(false, true);
  Gpt model(tiny(rotary, GENERATE(false, true)));
  model->eval();
  const torch::NoGradGuard no_grad;
  // Initial attention is close to even: larger weights make the differences plain.
  for (auto& parameter : model->parameters()) parameter.mul_(8);
  const auto whole = model->forward(torch::tensor({{1, 2, 3, 4, 5}}, torch::kLong))[0];
  const auto changed = model->forward(torch::tensor({{1, 2, 3, 9, 9}}, torch::kLong))[0];
  CHECK((at::allclose(whole.narrow(0, 0, 3), changed.narrow(0, 0, 3), 1e-5, 1e-6)));
  CHECK_FALSE((at::allclose(whole[3], changed[3], 1e-2, 1e-3)));
  CHECK_FALSE((at::allclose(scores_of_last(model, {1, 2, 3}), scores_of_last(model, {2, 1, 3}), 1e-2, 1e-3)));
  CHECK_FALSE((at::allclose(scores_of_last(model, {1, 2, 3}), scores_of_last(model, {4, 2, 3}), 1e-2, 1e-3)));
}

TEST_CASE("[E02] gpt has the parameters that its options say, and its layers are units") {
  const auto names = [](bool rotary, bool tied_head) {
    std::set<std::string> all;
    for (const auto& item : Gpt(tiny(rotary, tied_head))->named_parameters()) all.insert(item.key());
    return all;
  };
  CHECK(names(false, true).size() == 2 + 2 * 12 + 2);
  CHECK(names(false, true).count("positions.weight") == 1);
  CHECK(names(true, false).count("positions.weight") == 0);
  CHECK(names(true, false).count("head.weight") == 1);
  CHECK(troupe::wrap_units(Gpt(tiny(false, true)).ptr(), troupe::parse_wrap_policy("type:TransformerBlock")).size() ==
        3);
  CHECK(troupe::wrap_units(Gpt(tiny(false, true)).ptr(), troupe::parse_wrap_policy("block")).size() == 5);
}

TEST_CASE("[E02] options of gpt that can't be are refused") {
  auto options = tiny(true, true);
  options.n_head = 3;
  CHECK_THROWS_WITH(Gpt(options), Catch::Contains("8 can't be divided among 3 heads"));
  options.n_head = 8;
  CHECK_THROWS_WITH(Gpt(options), Catch::Contains("even number of channels"));
  Gpt model(tiny(false, true));
  CHECK_THROWS_WITH(model->forward(torch::zeros({1, 9}, torch::kLong)),
                    Catch::Contains("9 tokens are more than block_size 8"));
}
