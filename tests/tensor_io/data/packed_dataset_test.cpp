#include "tensor_io/data/packed_dataset.hpp"

#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include <nlohmann/json.hpp>

#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;
using troupe::testing::ScratchDirectory;

namespace {

// Two passes of five samples in two files each, and two held out. Sample i of pass p has x = (i, p) and label i.
struct PackedFolder {
  ScratchDirectory folder;
  nlohmann::json index = {{"format", 1},
                          {"train", 5},
                          {"held_out", 2},
                          {"passes", 2},
                          {"files", nlohmann::json::array()},
                          {"fields",
                           {{{"name", "x"}, {"dtype", "F32"}, {"shape", {2}}},
                            {{"name", "target"}, {"dtype", "I64"}, {"shape", nlohmann::json::array()}}}}};

  PackedFolder() {
    for (const auto pass : {0, 1}) {
      add("train", pass, 0, 3);
      add("train", pass, 3, 2);
    }
    add("held_out", 7, 0, 2);
  }
  void add(const std::string& part, std::int64_t pass, std::int64_t first, std::int64_t samples) {
    const auto numbers = torch::arange(first, first + samples);
    const auto x = torch::stack({numbers.to(torch::kFloat), torch::full({samples}, pass, torch::kFloat)}, 1);
    const auto name = part + std::to_string(index["files"].size()) + ".safetensors";
    save_safetensors(folder / name, {{"x", x}, {"target", numbers}});
    index["files"].push_back({{"name", name}, {"part", part}, {"pass", pass}, {"samples", samples}});
  }
  TrainAndHeldOut read() const {
    std::ofstream(folder / "packed.json") << index.dump();
    DataOptions options;
    options.data_dir = folder.path();
    return read_packed(options);
  }
  std::string refusal() const {
    try {
      read();
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::bad_data);
      return error.what();
    }
    return "accepted";
  }
};

}  // namespace

TEST_CASE("[U07] packed samples are read by number, and each epoch its pass") {
  const PackedFolder packed;
  const auto [train, held_out] = packed.read();
  REQUIRE(train->size() == 5);
  REQUIRE(held_out->size() == 2);
  for (const auto epoch : {0, 1, 2}) {
    SampleContext context;
    context.epoch = epoch;
    for (std::int64_t i = 0; i < 5; ++i) {
      const auto example = train->get(i, context);
      CHECK(example.target.item<std::int64_t>() == i);
      REQUIRE(example.named.size() == 1);
      CHECK(example.named[0].second.equal(torch::tensor({static_cast<float>(i), static_cast<float>(epoch % 2)})));
    }
    const std::vector<std::int64_t> wanted{4, 0, 3};
    const auto batch = train->get_batch(wanted, context);
    CHECK(batch.index.equal(torch::tensor(wanted)));
    CHECK(batch.target.equal(torch::tensor(wanted)));
    CHECK(batch["x"].equal(torch::tensor({{4.F, epoch % 2 * 1.F}, {0.F, epoch % 2 * 1.F}, {3.F, epoch % 2 * 1.F}})));
  }
  SampleContext late;
  late.epoch = 3;
  CHECK(held_out->get(1, late).named[0].second.equal(torch::tensor({1.F, 7.F})));
  CHECK(train->files_hash() != 0);
  CHECK_THROWS_AS(train->get(5, {}), Error);
}

TEST_CASE("[U07] packed files that are not what their index says are refused") {
  using Catch::Contains;
  const auto refusal = [](const std::function<void(PackedFolder&)>& change) {
    PackedFolder packed;
    change(packed);
    return packed.refusal();
  };
  CHECK_THAT(refusal([](auto& p) { p.index["train"] = 6; }), Contains("have 10 samples, but it says 12"));
  CHECK_THAT(refusal([](auto& p) { p.index["passes"] = 0; }), Contains("no sample to train on"));
  CHECK_THAT(refusal([](auto& p) { p.index["format"] = 2; }), Contains("the format is not 1"));
  CHECK_THAT(refusal([](auto& p) { p.index["fields"][0]["dtype"] = "F64"; }),
             Contains("its field 'x' is Float [3, 2]"));
  CHECK_THAT(refusal([](auto& p) { p.index["fields"][0]["name"] = "y"; }), Contains("has no field 'y'"));
  CHECK_THAT(refusal([](auto& p) { p.index["fields"][1]["name"] = "x"; }), Contains("a field has the name 'x'"));
  CHECK_THAT(refusal([](auto& p) { p.index["files"][0]["samples"] = 4; }), Contains("its field 'x'"));
  CHECK_THAT(refusal([](auto& p) { p.index["files"][0]["name"] = "../x"; }), Contains("a file has the name '../x'"));
  CHECK_THAT(refusal([](auto& p) { p.index["files"][0]["part"] = "test"; }), Contains("of the part 'test'"));
  CHECK_THAT(refusal([](auto& p) { std::filesystem::remove(p.folder / "train1.safetensors"); }),
             Contains("is missing"));
}
