#include "launch/compiled/compiled_manifest.hpp"

#include <functional>

#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/launch/compiled/made_model.hpp"

using namespace troupe;

namespace {

using Json = nlohmann::json;

Json whole_manifest() {
  auto json = test::made_manifest();
  for (const char* name : {"0.forward", "0.backward", "values"})
    json["sections"].push_back({{"name", name}, {"offset", 0}, {"size", 1}, {"sha256", "00"}});
  return json;
}

std::string refusal_of(const std::function<void(Json&)>& change) {
  auto json = whole_manifest();
  change(json);
  try {
    parse_compiled_manifest(json.dump(), "reading the compiled model: m.tm");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::bad_data);
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("[U07] a compiled model's manifest is read as it was written") {
  const auto m = parse_compiled_manifest(whole_manifest().dump(), "m.tm");
  CHECK(m.model == "Net");
  REQUIRE(m.graphs.size() == 1);
  CHECK(m.graphs[0].backward);
  CHECK(m.graphs[0].saved[0].result == false);
  CHECK(m.graphs[0].saved[1].result);
  CHECK(m.graphs[0].gradients == std::vector<std::size_t>{1});
  CHECK(describe(m.graphs[0].inputs[0].sizes[0]) == "s0");
  REQUIRE(m.train.calls.size() == 1);
  CHECK(m.train.calls[0].block == 0U);
  CHECK(m.train.values == 2);
  CHECK(m.train.loss == 1);
  CHECK_FALSE(m.train.count.has_value());
  CHECK(m.tensor("a.w")->trained);
  CHECK(m.tensor("a.v") == nullptr);
}

TEST_CASE("[U07] a manifest whose parts do not fit is refused, naming the part") {
  using Catch::Contains;
  CHECK_THAT(refusal_of([](Json& j) { j["format"] = 2; }), Contains("the format is not 1"));
  CHECK_THAT(refusal_of([](Json& j) { j["device"] = "cuda"; }), Contains("only cpu is supported"));
  CHECK_THAT(refusal_of([](Json& j) { j.erase("graphs"); }), Contains("key 'graphs' not found"));
  CHECK_THAT(refusal_of([](Json& j) { j["tensors"][0]["dtype"] = "F31"; }), Contains("the dtype 'F31' is unknown"));
  CHECK_THAT(refusal_of([](Json& j) { j["tensors"].push_back(j["tensors"][0]); }), Contains("'a.w' is there twice"));
  CHECK_THAT(refusal_of([](Json& j) { j["tensors"][0]["tied"] = "a.x"; }),
             Contains("'a.w' is tied to a tensor that does not match it"));
  CHECK_THAT(refusal_of([](Json& j) { j["graphs"][0]["inputs"][0]["order"] = {0, 0}; }), Contains("not a permutation"));
  CHECK_THAT(refusal_of([](Json& j) { j["graphs"][0]["saved"][0] = {"input", 2}; }), Contains("saved is out of range"));
  CHECK_THAT(refusal_of([](Json& j) { j["graphs"][0]["saved"][1][2] = {1, 1}; }), Contains("not a permutation"));
  CHECK_THAT(refusal_of([](Json& j) { j["graphs"][0]["saved"][1].erase(2); }),
             Contains("how an activation is laid out"));
  CHECK_THAT(refusal_of([](Json& j) { j["graphs"][0]["gradients"] = {0, 0}; }), Contains("has an index twice"));
  CHECK_THAT(refusal_of([](Json& j) { j["graphs"][0]["tangents"] = {1}; }), Contains("tangents has the index 1"));
  CHECK_THAT(refusal_of([](Json& j) { j["graphs"][0]["backward"] = false; }), Contains("without backward"));
  const auto call = [](Json& j) -> Json& { return j["passes"]["eval"]["calls"][0]; };
  CHECK_THAT(refusal_of([&](Json& j) { call(j)["graph"] = 1; }), Contains("a graph that does not exist"));
  CHECK_THAT(refusal_of([&](Json& j) { call(j)["block"] = "b"; }), Contains("the block 'b', which does not exist"));
  CHECK_THAT(refusal_of([&](Json& j) { call(j)["arguments"][0]["value"] = 1; }), Contains("not computed yet"));
  CHECK_THAT(refusal_of([&](Json& j) { call(j)["arguments"][1]["tensor"] = "x"; }), Contains("does not have"));
  CHECK_THAT(refusal_of([&](Json& j) { call(j)["arguments"][1] = {{"mask", 0.0}}; }), Contains("a mask's probability"));
  CHECK_THAT(refusal_of([&](Json& j) { call(j)["arguments"].erase(1); }), Contains("numbers of arguments"));
  CHECK_THAT(refusal_of([&](Json& j) { call(j)["results"] = {2}; }), Contains("numbered consecutively"));
  CHECK_THAT(refusal_of([](Json& j) { j["passes"]["eval"]["loss"]["loss"] = 9; }), Contains("loss is not a value"));
  CHECK_THAT(refusal_of([](Json& j) { j["sections"].erase(1); }), Contains("the code of graph 0 is missing"));
  CHECK_THAT(refusal_of([](Json& j) { j["sections"].erase(2); }), Contains("the initial values are missing"));
}
