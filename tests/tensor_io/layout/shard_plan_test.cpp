#include "tensor_io/layout/shard_plan.hpp"

#include <set>

#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"

using namespace troupe;

namespace {

std::vector<ParameterLayout> layout() {
  return {{"a.weight", {7, 5}, at::kFloat, true},   {"a.bias", {7}, at::kFloat, true},
          {"b.weight", {100, 9}, at::kFloat, true}, {"b.scale", {3}, at::kBFloat16, true},
          {"b.frozen", {11}, at::kFloat, false},    {"scalar", {}, at::kFloat, true},
          {"nothing", {0, 4}, at::kDouble, true}};
}

std::vector<UnitMembers> units() { return {{"a", {1, 0}}, {"b", {2, 3, 4}}, {"", {5, 6}}}; }

}  // namespace

TEST_CASE("[F06] every element of every parameter is in the shard of one rank, whatever their number", "[shard_plan]") {
  const int world_size = GENERATE(1, 2, 3, 4, 8, 64);
  const auto plan = plan_shards(layout(), units(), world_size);
  std::vector<std::vector<int>> owners(layout().size());
  for (std::size_t p = 0; p < owners.size(); ++p) owners[p].assign(static_cast<std::size_t>(layout()[p].numel()), 0);
  for (int rank = 0; rank < world_size; ++rank) {
    for (const auto& slice : slices_of(plan, rank)) {
      const auto& flat = plan.flats[static_cast<std::size_t>(slice.flat)];
      CHECK(slice.numel > 0);
      CHECK((slice.offset >= 0 && slice.offset + slice.numel <= flat.shard_numel));
      for (auto i = slice.begin; i < slice.begin + slice.numel; ++i)
        ++owners[static_cast<std::size_t>(slice.parameter)][static_cast<std::size_t>(i)];
    }
  }
  for (const auto& elements : owners) {
    for (const int n : elements) CHECK(n == 1);
  }
}

TEST_CASE("[F06] tensors and shards begin at 64 bytes and do not overlap", "[shard_plan]") {
  const int world_size = GENERATE(1, 2, 5);
  const auto plan = plan_shards(layout(), units(), world_size);
  for (const auto& flat : plan.flats) {
    const auto bytes = static_cast<std::int64_t>(c10::elementSize(flat.dtype));
    CHECK(flat.numel == world_size * flat.shard_numel);
    CHECK(flat.shard_numel * bytes % 64 == 0);
    std::int64_t end = 0;
    for (const auto& slot : flat.slots) {
      CHECK(slot.offset * bytes % 64 == 0);
      CHECK(slot.offset >= end);
      end = slot.offset + slot.numel;
    }
    CHECK(end <= flat.numel);
  }
}

TEST_CASE("[F06] a flat parameter has one dtype and is trained or frozen as a whole", "[shard_plan]") {
  const auto parameters = layout();
  const auto plan = plan_shards(parameters, units(), 2);
  CHECK(plan.units == std::vector<std::string>{"a", "b", ""});
  std::set<std::int32_t> placed;
  for (const auto& flat : plan.flats) {
    for (const auto& slot : flat.slots) {
      const auto& parameter = parameters[static_cast<std::size_t>(slot.parameter)];
      CHECK(parameter.dtype == flat.dtype);
      CHECK(parameter.requires_grad == flat.trainable);
      CHECK(placed.insert(slot.parameter).second);
    }
  }
  CHECK(placed.size() == parameters.size());
  CHECK(plan.flats.size() == 6);  // a; b in f32, in bf16, frozen; the rest in f32, in f64
}

TEST_CASE("[F06] plans are told apart by layout, units and number of ranks", "[shard_plan]") {
  const auto plan = plan_shards(layout(), units(), 2);
  CHECK(plan_shards(layout(), units(), 2).hash == plan.hash);
  CHECK(plan_shards(layout(), units(), 3).hash != plan.hash);
  CHECK(plan_shards(layout(), std::vector<UnitMembers>{{"", {0, 1, 2, 3, 4, 5, 6}}}, 2).hash != plan.hash);
  auto other = layout();
  other[0].shape = {5, 7};
  CHECK(plan_shards(other, units(), 2).hash != plan.hash);
}

TEST_CASE("[F06] a parameter in no unit, or in two, is refused by name", "[shard_plan]") {
  CHECK_THROWS_WITH(plan_shards(layout(), std::vector<UnitMembers>{{"a", {0, 1, 2, 3, 4, 5}}}, 2),
                    Catch::Contains("nothing is in 0 units"));
  CHECK_THROWS_WITH(plan_shards(layout(), std::vector<UnitMembers>{{"a", {0, 1, 2, 3, 4, 5, 6, 0}}}, 2),
                    Catch::Contains("a.weight is in 2 units"));
}
