// MNIST's IDX, CIFAR-10's records, CSV, gzip around them; shards of tokens, text, packed data.
#include "tensor_io/data/datasets.hpp"

#include "tensor_io/data/packed_dataset.hpp"
#include "tensor_io/data/token_dataset.hpp"

#include "tests/fuzz/fuzz.hpp"

using namespace troupe;

TROUPE_FUZZ_TARGET(const std::uint8_t* data, std::size_t bytes) {
  static const fuzz::InputFile file("data");
  if (bytes < 1) return 0;
  const auto content = fuzz::text_of(data + 1, bytes - 1);
  return fuzz::try_input([&] {
    if (data[0] % 6 == 5) {
      std::ofstream(file.folder() / "packed.json", std::ios::binary)
          .write(content.data(), static_cast<std::streamsize>(content.size()));
      DataOptions packed;
      packed.data_dir = file.folder().string();
      return (void)read_packed(packed);
    }
    if (data[0] % 6 == 0) return (void)read_idx(file.write(content));
    if (data[0] % 6 > 2) {
      static const fuzz::InputFile shard("data.bin");
      TokenOptions tokens;
      tokens.paths = {data[0] % 6 == 3 ? shard.write(content) : file.write(content)};
      tokens.block_size = 4;
      tokens.vocab_size = 300;
      const auto [train, held_out] = read_tokens(tokens);
      for (std::int64_t i = 0; i < train->size(); i += 1 + train->size() / 7) (void)train->get(i, {});
      return;
    }
    DataOptions options;
    options.data_dir = file.folder().string();
    if (data[0] % 6 == 1) {
      for (const char* name : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
                               "data_batch_5.bin", "test_batch.bin"})
        std::ofstream(file.folder() / name, std::ios::binary)
            .write(content.data(), static_cast<std::streamsize>(content.size()));
      return (void)read_cifar10(options);
    }
    options.data_dir = file.write(content);
    (void)read_csv(options);
  });
}
