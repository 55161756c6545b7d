#include "tensor_io/snapshot.hpp"

#include <torch/torch.h>

#include <random>

#include "tensor_io/checkpoint_writer.hpp"
#include "tensor_io/file_layer.hpp"
#include "tensor_io/safetensors.hpp"
#include "tests/catch.hpp"
#include "tests/support/faulty_files.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

NamedTensors live_tensors() {
  return {{"b", torch::randn({300, 70})},  {"flags", torch::ones({7}, torch::kBool)},     {"a", torch::randn({33, 5}).t()},
          {"empty", torch::zeros({0, 4})}, {"half", torch::randn({5}, torch::kBFloat16)}, {"step", torch::tensor(std::int64_t{9})}};
}

/// A folder on the disk that the build lies on: the scratch directory may be memory, which knows no O_DIRECT.
struct DiskFolder {
  std::string path = TROUPE_BINARY_DIR "/disk-folder-" + std::to_string(::getpid());
  DiskFolder() { std::filesystem::create_directories(path); }
  ~DiskFolder() { std::filesystem::remove_all(path); }
};

}  // namespace

TEST_CASE("[C02] a snapshot keeps the values of its moment, in memory that stays") {
  const auto live = live_tensors();
  Snapshot snapshot;
  const auto first = snapshot.take(live);
  REQUIRE(first.size() == live.size());
  const void* place = first[0].second.const_data_ptr();
  for (std::size_t i = 0; i < live.size(); ++i) {
    CHECK(first[i].first == live[i].first);
    CHECK((first[i].second.scalar_type() == live[i].second.scalar_type() && first[i].second.is_contiguous()));
    CHECK((first[i].second.sizes() == live[i].second.sizes() && first[i].second.equal(live[i].second)));
  }
  const auto before = live[0].second.clone();
  live[0].second.add_(1);
  CHECK(first[0].second.equal(before));
  const auto second = snapshot.take(live);
  CHECK(second[0].second.equal(live[0].second));
  CHECK(second[0].second.const_data_ptr() == place);
}

TEST_CASE("[C02] a snapshot's file is the file of the live tensors, byte for byte") {
  const ScratchDirectory scratch;
  const auto live = live_tensors();
  Snapshot snapshot;
  save_safetensors(scratch / "live", live);
  save_safetensors(scratch / "snapshot", snapshot.take(live));
  CHECK(read_text(scratch / "live") == read_text(scratch / "snapshot"));
  const auto read = load_safetensors(scratch / "snapshot");
  CHECK(read.size() == live.size());
}

TEST_CASE("[C02] a durable file holds what was appended, in pieces of any length and place") {
  const bool on_disk = GENERATE(true, false);
  const bool short_writes = GENERATE(false, true);
  const DiskFolder disk;
  const ScratchDirectory scratch;
  std::mt19937_64 random(7);
  const auto memory = torch::randint(0, 256, {6 << 20}, torch::kByte);
  const auto* bytes = reinterpret_cast<const char*>(memory.const_data_ptr());
  for (int trial = 0; trial < 4; ++trial) {
    FaultyFiles halves;  // writes one half of what it is given
    const auto path = (on_disk ? disk.path : scratch.path()) + "/file" + std::to_string(trial);
    DurableFile file(short_writes ? static_cast<FileLayer&>(halves) : real_files(), path);
    std::string expected;
    while (expected.size() < (5u << 20)) {
      const std::size_t lengths[] = {random() % 100, random() % 100'000, random() % (2u << 20), 4096 * (1 + random() % 300)};
      const auto length = lengths[random() % 4];
      // Every other one begins at a page of the memory.
      std::size_t begin = random() % ((4u << 20) - 8192);
      if (random() % 2 == 0) begin += (4096 - (reinterpret_cast<std::uintptr_t>(bytes) + begin) % 4096) % 4096;
      file.append(std::string_view(bytes + begin, length));
      expected.append(bytes + begin, length);
    }
    const auto digest = file.finish();
    CHECK((read_text(path) == expected));
    CHECK(digest.bytes == expected.size());
    CHECK(digest.xxh3 == xxh3_text(xxh3(expected)));
  }
}
