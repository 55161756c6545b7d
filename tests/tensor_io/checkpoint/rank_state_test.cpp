#include "tensor_io/checkpoint/rank_state.hpp"

#include <torch/torch.h>

#include <limits>

#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"

using namespace troupe;
using Catch::Contains;

TEST_CASE("[C01] a rank's generator, cursor and counters come back from their JSON text") {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(42);
  torch::rand(1000, generator);
  const auto rng = generator.get_state();
  RankState state;
  state.rng.assign(rng.data_ptr<std::uint8_t>(), rng.data_ptr<std::uint8_t>() + rng.numel());
  state.epoch = 3;
  state.step_in_epoch = 17;
  state.counters = {{"scale", 65536.0},
                    {"third", 1.0 / 3},
                    {"tiny", std::numeric_limits<double>::denorm_min()},
                    {"zero", 0},
                    {"", -1e300}};
  state.strings = {{"policy", "dynamic"}, {"quoted \"key\"", "zwölf\n"}};
  const auto text = state.to_json();
  CHECK_THAT(text, Contains("\"scale\": 65536.0"));  // readable by people
  const auto back = RankState::from_json(text, "rank-00000.json");
  CHECK((back == state));

  auto other = at::make_generator<at::CPUGeneratorImpl>(1);
  other.set_state(torch::tensor(at::ArrayRef<std::uint8_t>(back.rng), torch::kByte));
  CHECK(torch::equal(torch::rand(10, generator), torch::rand(10, other)));
}

TEST_CASE("an empty rank state comes back") {
  CHECK((RankState::from_json(RankState{}.to_json(), "x") == RankState{}));
}

TEST_CASE("[C03] a counter of 0 may have any exponent") {  // RapidJSON's parser shifts by an undefined count there
  RankState state;
  state.counters = {{"a", 1}};
  auto text = state.to_json();
  text.replace(text.find("1.0"), 3, "0E68");
  state.counters = {{"a", 0}};
  CHECK((RankState::from_json(text, "x") == state));
}

TEST_CASE("a rank state that JSON cannot hold is refused with its name") {
  RankState state;
  state.counters["loss"] = std::nan("");
  CHECK_THROWS_WITH(state.to_json(), Contains("'loss'"));
  state.counters.clear();
  state.strings["s"] = "\xff";
  CHECK_THROWS_AS(state.to_json(), Error);
}

TEST_CASE("[C03] a damaged or hostile rank state is refused, never a crash") {
  RankState state;
  state.rng = {1, 2, 3};
  state.counters = {{"a", 1}};
  state.strings = {{"b", "c"}};
  const auto text = state.to_json();
  auto refused = [](const std::string& damaged) {
    try {
      RankState::from_json(damaged, "rank-00000.json");
      return false;
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::bad_data);
      CHECK_THAT(error.what(), Contains("rank-00000.json"));
      return true;
    }
  };
  for (std::size_t length = 0; length + 2 < text.size(); ++length) {
    INFO(length);
    CHECK(refused(text.substr(0, length)));
  }
  for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
    auto flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    refused(flipped);  // or another value, which the manifest's hash finds
  }
  auto with = [&text](const std::string& from, const std::string& to) {
    auto changed = text;
    REQUIRE(changed.find(from) != changed.npos);
    changed.replace(changed.find(from), from.size(), to);
    return changed;
  };
  CHECK(refused(std::string(1'000'000, '[')));
  CHECK(refused("{\"epoch\":" + std::string(1'000'000, '[') + std::string(1'000'000, ']') + "}"));
  CHECK(refused(with("\"bytes\": 3", "\"bytes\": 18446744073709551615")));
  CHECK(refused(with("\"bytes\": 3", "\"bytes\": 100")));
  CHECK(refused(with("\"bytes\": 3", "\"bytes\": -1")));
  CHECK(refused(with("\"epoch\": 0", "\"epoch\": \"0\"")));
  CHECK(refused(with("\"epoch\": 0", "\"epoch\": 0, \"epoch\": 0")));
  CHECK(refused(with("\"epoch\": 0", "\"epoch\": -1")));
  CHECK(refused(with("\"format_version\": 1", "\"format_version\": 2")));
  CHECK(refused(with("\"a\": 1.0", "\"a\": [1.0]")));
  CHECK(refused(with("\"a\": 1.0", "\"a\": \"x\"")));
  CHECK(refused(with("\"b\": \"c\"", "\"b\": 7")));
  CHECK(refused(with("\"a\": 1.0", "\"a\": 1e999")));
  CHECK(refused(with("  \"strings\"", "  \"other\"")));
  CHECK(refused("[]"));
  CHECK(refused("7"));
}
