#include "tensor_io/checkpoint/snapshot.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <random>

#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tensor_io/checkpoint/checkpoint_writer.hpp"
#include "tensor_io/checkpoint/hashed_copy.hpp"
#include "tensor_io/checkpoint/safetensors.hpp"
#include "tensor_io/checkpoint/state_parts.hpp"
#include "tensor_io/files/file_layer.hpp"
#include "tests/catch.hpp"
#include "tests/support/faulty_files.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

NamedTensors live_tensors() {
  return {{"b", torch::randn({300, 70})},
          {"flags", torch::ones({7}, torch::kBool)},
          {"a", torch::randn({33, 5}).t()},
          {"empty", torch::zeros({0, 4})},
          {"half", torch::randn({5}, torch::kBFloat16)},
          {"step", torch::tensor(std::int64_t{9})}};
}

CheckpointPart part_with(const NamedTensors& tensors) {
  CheckpointPart part;
  for (const auto& [name, tensor] : tensors) part.tensors.push_back(whole_part(name, tensor));
  part.rank_state = "{}";
  return part;
}

/// A folder on the disk that the build lies on: the scratch directory may be memory, which knows no O_DIRECT.
struct DiskFolder {
  std::string path = TROUPE_BINARY_DIR "/disk-folder-" + std::to_string(::getpid());
  DiskFolder() { std::filesystem::create_directories(path); }
  ~DiskFolder() { std::filesystem::remove_all(path); }
};

constexpr auto kChunk = static_cast<std::int64_t>(FileDigest::kChunkBytes);

/// More than 32 MiB, which make a large file. No length is a multiple of a chunk.
NamedTensors large_tensors() {
  return {{"a", torch::randint(0, 1 << 30, {5'000'001}, torch::kInt)},
          {"b", torch::randint(0, 1 << 30, {900, 1000}, torch::kInt).t()},
          {"c", torch::randint(0, 1 << 30, {3'000'003}, torch::kInt)}};
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

FileDigest digest_of(std::string_view text) {
  DigestBuilder builder;
  builder.update(std::as_bytes(std::span(text)));
  return builder.finish();
}

}  // namespace

TEST_CASE("[C02] a snapshot keeps the values of its moment, in memory that stays") {
  auto live = live_tensors();
  Snapshot snapshot;
  auto first = part_with(live);
  CHECK(snapshot.take(first) == 0);
  REQUIRE(first.tensors.size() == live.size());
  std::map<std::string, at::Tensor> by_name(live.begin(), live.end());
  const void* place = nullptr;
  for (const auto& part : first.tensors) {
    const auto& original = by_name.at(part.name);
    REQUIRE(part.pieces.size() == 1);
    CHECK((part.pieces[0].scalar_type() == original.scalar_type() && part.pieces[0].is_contiguous()));
    CHECK((part.pieces[0].sizes() == original.sizes() && part.pieces[0].equal(original)));
    if (part.name == "b") place = part.pieces[0].const_data_ptr();
  }
  const auto find = [](const CheckpointPart& saved, const std::string& name) {
    return std::find_if(saved.tensors.begin(), saved.tensors.end(), [&](const auto& part) { return part.name == name; })
        ->pieces[0];
  };
  const auto before = by_name.at("b").clone();
  by_name.at("b").add_(1);
  CHECK(find(first, "b").equal(before));
  auto second = part_with(live);
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
  auto part = part_with(live);
  const auto count = snapshot.take(part);
  CHECK(snapshot.bytes() <= (limit + 4095) / 4096 * 4096);
  CHECK(count <= live.size());
  CHECK((limit < 84'685) == (count > 0));  // bytes of all
  int calls = 0;
  {
    DurableFile file(real_files(), scratch / "limited");
    write_safetensors(file, part.tensors, {.live = count, .live_written = [&] { ++calls; }});
    file.finish();
  }
  CHECK(calls == 1);
  save_safetensors(scratch / "live", live);
  CHECK(read_text(scratch / "live") == read_text(scratch / "limited"));
}

TEST_CASE("[C02] pieces end to end are one block of a snapshot") {
  const auto whole = torch::randn({10, 6});
  CheckpointPart part;
  part.tensors = {rows_part("w", whole, 2, 9)};
  part.tensors[0].pieces = {whole.view(-1).narrow(0, 12, 7), whole.view(-1).narrow(0, 19, 35)};
  CHECK(values_of(part.tensors[0]).equal(whole.narrow(0, 2, 7)));
  Snapshot snapshot;
  snapshot.take(part);
  CHECK(part.tensors[0].pieces[0].equal(whole.narrow(0, 2, 7)));
}

TEST_CASE("[C02] a snapshot's file is the file of the live tensors, byte for byte") {
  const ScratchDirectory scratch;
  const auto live = live_tensors();
  Snapshot snapshot;
  auto part = part_with(live);
  snapshot.take(part);
  NamedTensors copies;
  for (const auto& tensor : part.tensors) copies.emplace_back(tensor.name, tensor.pieces[0]);
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
      const std::size_t lengths[] = {random() % 100, random() % 100'000, random() % (2u << 20),
                                     4096 * (1 + random() % 300)};
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

TEST_CASE("[C02] a hash of pieces is that of the whole") {
  const auto memory = torch::randint(0, 256, {kChunk + 12'345}, torch::kByte);
  const auto bytes = bytes_of(memory);
  std::mt19937_64 random(3);
  Xxh3Stream stream;
  for (int trial = 0; trial < 4; ++trial) {
    for (auto rest = bytes; !rest.empty();) {
      const auto piece = rest.first(std::min<std::size_t>(rest.size(), random() % 50'000));
      stream.update(piece);
      rest = rest.subspan(piece.size());
    }
    CHECK(stream.take() == xxh3(bytes));
  }
  CHECK(stream.take() == xxh3(std::string_view()));
}

TEST_CASE("[C02] a copy knows the hashes of the chunks that it saw whole") {
  const std::int64_t offset = GENERATE(0, 1, kChunk - 1, kChunk, 3 * kChunk + 4096);
  INFO(offset);
  const auto from = torch::randint(0, 256, {9 * kChunk / 2}, torch::kByte);
  const auto to = torch::zeros_like(from);
  auto* target = to.mutable_data_ptr<std::uint8_t>();
  HashedCopy copy(static_cast<std::uint64_t>(offset));
  std::mt19937_64 random(5);
  std::int64_t at = 0, first_skipped = -1, last_skipped = -1;  // chunks
  while (at < from.numel()) {
    const auto bytes = std::min<std::int64_t>(from.numel() - at, static_cast<std::int64_t>(random() % 300'000));
    if (first_skipped < 0 && at > 2 * kChunk && bytes > 0) {
      first_skipped = (offset + at) / kChunk;
      last_skipped = (offset + at + bytes - 1) / kChunk;
      std::memcpy(target + at, from.const_data_ptr<std::uint8_t>() + at, static_cast<std::size_t>(bytes));
      copy.skip(static_cast<std::uint64_t>(bytes));
    } else {
      copy.add(target + at, bytes_of(from.narrow(0, at, bytes)));
    }
    copy.skip(0);
    at += bytes;
  }
  CHECK(to.equal(from));
  ChunkHashes expected;
  for (auto chunk = (offset + kChunk - 1) / kChunk; (chunk + 1) * kChunk <= offset + from.numel(); ++chunk) {
    if (chunk < first_skipped || chunk > last_skipped)
      expected[static_cast<std::uint64_t>(chunk)] = xxh3(bytes_of(from.narrow(0, chunk * kChunk - offset, kChunk)));
  }
  CHECK((copy.take() == expected));
}

TEST_CASE("[C02] a digest takes the hashes that it expects and reads nothing of their chunks") {
  const std::string text(static_cast<std::size_t>(3 * kChunk + 5), 'x');
  const auto bytes = std::as_bytes(std::span(text));
  const auto piece = GENERATE(1'000, 1 << 20, (1 << 20) + 4096);
  DigestBuilder builder;
  builder.expect({{1, 42}});
  for (auto rest = bytes; !rest.empty();
       rest = rest.subspan(std::min<std::size_t>(rest.size(), static_cast<std::size_t>(piece))))
    builder.update(rest.first(std::min<std::size_t>(rest.size(), static_cast<std::size_t>(piece))));
  const auto digest = builder.finish();
  const auto read = digest_of(text);
  CHECK(digest.bytes == read.bytes);
  CHECK(digest.chunks ==
        std::string(read.chunk(0)) + xxh3_text(42) + std::string(read.chunk(2)) + std::string(read.chunk(3)));
  CHECK(digest.xxh3 == FileDigest::of_chunks(digest.chunks));

  DigestBuilder late;
  late.update(bytes.first(1));
  late.expect({{0, 42}});
  late.update(bytes.subspan(1));
  CHECK((late.finish() == read));

  DigestBuilder cut;
  cut.expect({{3, 42}});
  cut.update(bytes);
  CHECK_THROWS_AS(cut.finish(), Error);
}

TEST_CASE("[C02] the tensors of a large file begin at a chunk, of a small one at a page") {
  const ScratchDirectory scratch;
  const auto numel = GENERATE(std::int64_t{1}, (32 << 20) - 1, 32 << 20);
  save_safetensors(scratch / "file", {{"w", torch::zeros({numel}, torch::kByte)}});
  const SafetensorsFile file(scratch / "file");
  CHECK(file.head().size() == (numel < (32 << 20) ? 4096u : 1u << 20));
  CHECK(file.read(*file.find("w")).numel() == numel);
}

TEST_CASE("[C02] a snapshot knows the hashes of what it copied, and the file of them is that of the live tensors") {
  const ScratchDirectory scratch;
  const auto live = large_tensors();
  const std::int64_t limit = GENERATE(std::int64_t{1} << 30, 16 << 20, 100);
  INFO(limit);
  save_safetensors(scratch / "live", live);
  const auto text = read_text(scratch / "live");
  const auto digest = digest_of(text);
  const auto begin = SafetensorsFile(scratch / "live").head().size() / FileDigest::kChunkBytes;
  Snapshot snapshot(limit);
  auto part = part_with(live);
  const auto count = snapshot.take(part);
  CHECK(count == (limit > 100 << 20 ? 0u : limit > 100 ? 1u : 3u));
  // Whole chunks of `a` and of `c`; `b`, which has another order in memory, is not read for it.
  CHECK(part.hashes.size() == (count == 0 ? 19u + 10u : count == 1 ? 10u : 0u));
  for (const auto& [index, hash] : part.hashes) CHECK(xxh3_text(hash) == digest.chunk(begin + index));
  DurableFile file(real_files(), scratch / "snapshot");
  write_safetensors(file, part.tensors, {.hashes = part.hashes, .live = count});
  CHECK((file.finish() == digest));
  CHECK((read_text(scratch / "snapshot") == text));
  part.tensors = part_with(live_tensors()).tensors;
  snapshot.take(part);
  CHECK(part.hashes.empty());
}

TEST_CASE("[C02] what changes between the copy and the disk is found") {
  const DiskFolder disk;
  const SaveAttempt attempt{0, "x"};
  Snapshot snapshot;
  auto part = part_with(large_tensors());
  snapshot.take(part);
  const bool flip = GENERATE(false, true);
  auto values = part.tensors[0].pieces[0];
  if (flip) values[kChunk].bitwise_xor_(1);
  write_checkpoint_part(disk.path, attempt, part);
  const auto path = CheckpointWriter(disk.path, 1, real_files(), attempt).publish(attempt, 1, false).path;
  if (flip) {
    // Element kChunk is in the fifth MiB of the tensors, and before them comes one of the header.
    CHECK_THROWS_WITH(load_checkpoint(disk.path, path),
                      Catch::Contains("was changed between offsets 5242880 and 6291456"));
  } else {
    CHECK(load_checkpoint(disk.path, path).state.tensors.size() == 3);
  }
}
