// Shards of tokens with NumPy's, llm.c's or no header, and Megatron-LM's index beside them.
#include <algorithm>
#include <vector>

#include "tensor_io/data/token_shard.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace troupe;

// The first byte says which file the rest is: 0 shard.npy, 1 shard.bin, 2 the index of a good shard.bin.
TROUPE_FUZZ_TARGET(const std::uint8_t* data, std::size_t bytes) {
  static const fuzz::InputFile numpy("shard.npy"), shard("shard.bin");
  if (bytes < 1) return 0;
  const auto content = fuzz::text_of(data + 1, bytes - 1);
  const auto index = shard.folder() / "shard.idx";
  std::filesystem::remove(index);
  if (data[0] % 3 == 2)
    std::ofstream(index, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
  const auto path = data[0] % 3 == 0   ? numpy.write(content)
                    : data[0] % 3 == 1 ? shard.write(content)
                                       : shard.write(std::string(64, '\1'));
  return fuzz::try_input([&] {
    const TokenShard tokens(path, 0, 300);
    std::vector<std::int64_t> ids(static_cast<std::size_t>(std::min<std::int64_t>(tokens.tokens(), 64)));
    tokens.read(0, 1 << 30, ids);
    tokens.read(tokens.tokens() - static_cast<std::int64_t>(ids.size()), 1 << 30, ids);
  });
}
