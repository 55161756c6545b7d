#include <ATen/ops/empty.h>

#include "tensor_io/data/datasets.hpp"
#include "tensor_io/data/text_table.hpp"
#include "tensor_io/data/webdataset.hpp"
#include "tests/catch.hpp"
#include "tests/reading/picture_bytes.hpp"
#include "tests/reading/reading_cases.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;

namespace {

at::Tensor text_tensor(const std::string& text) {
  auto bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  text.copy(static_cast<char*>(bytes.data_ptr()), text.size());
  return bytes;
}

}  // namespace

TEST_CASE("[D4] [D8] [D9] tar shards hold webdataset's samples, or are refused by member", "[reading]") {
  testing::check_reading("shards", [](const std::string& folder, const testing::ReadingCase& one) {
    for (const auto& [name, bytes] : one.files)  // they lie there as gzip, so that the cases stay small
      testing::write_text(folder + "/" + name, read_file(folder + "/" + name));
    std::string keys;
    const ShardFolder shards(folder, false);
    for (std::size_t i = 0; i < shards.shards(); ++i) {
      for (const auto& sample : shards.open(i)->samples()) keys += (keys.empty() ? "" : "\n") + sample.key;
    }
    DataOptions options;
    options.data_dir = folder;
    options.image_size = 4;
    const auto data = read_webdataset(options).first;
    NamedTensors read{{"keys", text_tensor(keys)}};
    testing::add_pictures("pixels", *data, {0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}, read);
    return read;
  });
}
