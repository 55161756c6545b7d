// MNIST's IDX, CIFAR-10's records, CSV, gzip around them.
#include "tensor_io/datasets.hpp"

#include "tests/fuzz/fuzz.hpp"

using namespace troupe;

TROUPE_FUZZ_TARGET(const std::uint8_t* data, std::size_t bytes) {
  static const fuzz::InputFile file("data");
  if (bytes < 1) return 0;
  const auto content = fuzz::text_of(data + 1, bytes - 1);
  return fuzz::try_input([&] {
    if (data[0] % 3 == 0) return (void)read_idx(file.write(content));
    DataOptions options;
    options.data_dir = file.folder().string();
    if (data[0] % 3 == 1) {
      for (const char* name :
           {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"})
        std::ofstream(file.folder() / name, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
      return (void)read_cifar10(options);
    }
    options.data_dir = file.write(content);
    (void)read_csv(options);
  });
}
