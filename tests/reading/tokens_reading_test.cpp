#include <ATen/ops/empty.h>

#include <filesystem>

#include "tensor_io/data/token_shard.hpp"
#include "tests/catch.hpp"
#include "tests/reading/reading_cases.hpp"

using namespace troupe;

TEST_CASE("[D5] token files of all widths are read as numpy reads them, or refused by offset", "[reading]") {
  testing::check_reading("tokens", [](const std::string& folder, const testing::ReadingCase& one) -> NamedTensors {
    const auto named = folder + "/a.npy";
    const auto vocab_size = one.settings.at("vocab_size").get<std::int64_t>();
    const TokenShard shard(std::filesystem::exists(named) ? named : folder + "/a.bin",
                           one.settings.value("token_bits", std::int64_t{0}), vocab_size);
    const auto ids = at::empty({shard.tokens()}, at::kLong);
    shard.read(0, vocab_size, {ids.data_ptr<std::int64_t>(), static_cast<std::size_t>(ids.numel())});
    return {{"ids", ids}};
  });
}
