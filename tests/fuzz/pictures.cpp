// JPEG and PNG pictures, tar shards with them, index.json beside those, patterns in braces.
#include <algorithm>

#include "tensor_io/data/image_decode.hpp"
#include "tensor_io/data/webdataset.hpp"
#include "tensor_io/files/braces.hpp"

#include "tests/fuzz/fuzz.hpp"

using namespace troupe;

TROUPE_FUZZ_TARGET(const std::uint8_t* data, std::size_t bytes) {
  static const fuzz::InputFile shard("part-0.tar");
  if (bytes < 1) return 0;
  const auto content = fuzz::text_of(data + 1, bytes - 1);
  return fuzz::try_input([&] {
    if (data[0] % 4 == 0)
      return (void)decode_image(std::as_bytes(std::span(content)), "picture", 1 + 2 * (data[0] >> 7), data[0] % 64);
    if (data[0] % 4 == 1) return (void)expand_braces(std::string(content.substr(0, 200)));
    DataOptions options;
    options.data_dir = shard.folder().string();
    options.image_size = 8;
    options.on_bad_sample = (data[0] & 64) != 0 ? "skip" : "stop";
    const auto index = shard.folder() / "index.json";
    std::filesystem::remove(index);
    if (data[0] % 4 == 2) {
      shard.write(content);
    } else {
      shard.write(std::string(1024, '\0'));
      std::ofstream(index, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
    }
    const auto [train, held_out] = read_webdataset(options);
    for (std::int64_t i = 0; i < std::min<std::int64_t>(train->size(), 4); ++i) (void)train->get(i, {});
  });
}
