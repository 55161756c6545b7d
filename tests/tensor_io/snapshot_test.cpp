#include "tensor_io/snapshot.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <random>

#include "tensor_io/checkpoint_writer.hpp"
#include "tensor_io/file_layer.hpp"
#include "tensor_io/safetensors.hpp"
#include "tensor_io/state_parts.hpp"
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

std::vector<TensorPart> parts_of(const NamedTensors& tensors) {
  std::vector<TensorPart> parts;
  for (const auto& [name, tensor] : tensors) parts.push_back(whole_part(name, tensor));
  return parts;
}

/// A folder on the disk that the build lies on: the scratch directory may be memory, which knows no O_DIRECT.
struct DiskFolder {
  std::string path = TROUPE_BINARY_DIR "/disk-folder-" + std::to_string(::getpid());
  DiskFolder() { std::filesystem::create_directories(path); }
  ~DiskFolder() { std::filesystem::remove_all(path); }
};

}  // namespace

TEST_CASE("[C02] a snapshot keeps the values of its moment, in memory that stays") {
  auto live = live_tensors();
  Snapshot snapshot;
  auto first = parts_of(live);
  CHECK(snapshot.take(first) == 0);
  REQUIRE(first.size() == live.size());
  std::map<std::string, at::Tensor> by_name(live.begin(), live.end());
  const void* place = nullptr;
  for (const auto& part : first) {
    const auto& original = by_name.at(part.name);
    REQUIRE(part.pieces.size() == 1);
    CHECK((part.pieces[0].scalar_type() == original.scalar_type() && part.pieces[0].is_contiguous()));
    CHECK((part.pieces[0].sizes() == original.sizes() && part.pieces[0].equal(original)));
    if (part.name == "b") place = part.pieces[0].const_data_ptr();
  }
  const auto find = [](const std::vector<TensorPart>& parts, const std::string& name) {
    return std::find_if(parts.begin(), parts.end(), [&](const auto& part) { return part.name == name; })->pieces[0];
  };
  const auto before = by_name.at("b").clone();
  by_name.at("b").add_(1);
  CHECK(find(first, "b").equal(before));
  auto second = parts_of(live);
  snapshot.take(second);
  CHECK(find(second, "b").equal(by_name.at("b")));
  CHECK(find(second, "b").const_data_ptr() == place);
}

TEST_CASE("[C02] what does not fit into the staging area stays live, and is told of when it is written") {
  const ScratchDirectory scratch;
  const auto live = live_tensors();
  const auto limit = GENERATE(0, 1, 100, 700, 84'000, 90'000);
  INFO(limit);
  Snapshot snapshot(limit);
  auto parts = parts_of(live);
  const auto count = snapshot.take(parts);
  CHECK(snapshot.bytes() <= (limit + 4095) / 4096 * 4096);
  CHECK(count <= live.size());
  CHECK((limit < 84'685) == (count > 0));  // bytes of all
  int calls = 0;
  {
    DurableFile file(real_files(), scratch / "limited");
    write_safetensors(file, parts, {}, count, [&] { ++calls; });
    file.finish();
  }
  CHECK(calls == 1);
  save_safetensors(scratch / "live", live);
  CHECK(read_text(scratch / "live") == read_text(scratch / "limited"));
}

TEST_CASE("[C02] pieces end to end are one block of a snapshot") {
  const auto whole = torch::randn({10, 6});
  std::vector<TensorPart> parts{rows_part("w", whole, 2, 9)};
  parts[0].pieces = {whole.view(-1).narrow(0, 12, 7), whole.view(-1).narrow(0, 19, 35)};
  CHECK(values_of(parts[0]).equal(whole.narrow(0, 2, 7)));
  Snapshot snapshot;
  snapshot.take(parts);
  CHECK(parts[0].pieces[0].equal(whole.narrow(0, 2, 7)));
}

TEST_CASE("[C02] a snapshot's file is the file of the live tensors, byte for byte") {
  const ScratchDirectory scratch;
  const auto live = live_tensors();
  Snapshot snapshot;
  auto parts = parts_of(live);
  snapshot.take(parts);
  NamedTensors copies;
  for (const auto& part : parts) copies.emplace_back(part.name, part.pieces[0]);
  save_safetensors(scratch / "live", live);
  save_safetensors(scratch / "snapshot", copies);
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
    DigestBuilder again;
    again.update(std::as_bytes(std::span(expected)));
    CHECK((digest == again.finish()));
  }
}
