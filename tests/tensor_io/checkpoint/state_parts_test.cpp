#include "tensor_io/checkpoint/state_parts.hpp"

#include <torch/torch.h>

#include <random>

#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tensor_io/checkpoint/checkpoint_writer.hpp"
#include "tensor_io/checkpoint/hashed_file.hpp"
#include "tensor_io/checkpoint/stored_checkpoint.hpp"
#include "tensor_io/files/bounded_file.hpp"
#include "tensor_io/layout/flat_rows.hpp"
#include "tests/catch.hpp"
#include "tests/support/faulty_files.hpp"
#include "tests/support/scratch_directory.hpp"
#include "tests/support/training_state.hpp"

using namespace troupe;
using namespace troupe::testing;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

NamedTensors odd_tensors() {
  return {{"a", torch::randn({13, 5})},        {"scalar", torch::tensor(3.5)},
          {"b", torch::randn({1, 700})},       {"empty", torch::zeros({0, 3})},
          {"t", torch::randn({6, 11}).t()},    {"half", torch::randn({31}, torch::kBFloat16)},
          {"large", torch::randn({401, 1009})}};
}

/// Every element of `whole` from exactly one part.
void check_tiling(const NamedTensors& whole, const std::vector<TensorPart>& parts) {
  for (const auto& [name, tensor] : whole) {
    auto count = torch::zeros(tensor.sizes(), torch::kInt);
    bool seen = false;
    for (const auto& part : parts) {
      if (part.name != name) continue;
      seen = true;
      CHECK((part.global_shape == tensor.sizes().vec() && part.dtype == tensor.scalar_type()));
      auto block = tensor, counted = count;
      for (std::size_t d = 0; d < part.shape.size(); ++d) {
        block = block.narrow(static_cast<std::int64_t>(d), part.offsets[d], part.shape[d]);
        counted = counted.narrow(static_cast<std::int64_t>(d), part.offsets[d], part.shape[d]);
      }
      CHECK(values_of(part).equal(block));
      counted.add_(1);
    }
    INFO(name);
    CHECK(seen);
    CHECK(count.eq(1).all().item<bool>());
  }
}

}  // namespace

TEST_CASE("[C02] ranks that have all of a state write equal shares of it, and nothing twice") {
  const auto tensors = odd_tensors();
  std::size_t total = 0;
  for (const auto& [name, tensor] : tensors) total += tensor.nbytes();
  for (const std::int64_t ranks : {1, 2, 3, 7, 64}) {
    INFO(ranks << " ranks");
    std::vector<TensorPart> all;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      std::size_t bytes = 0;
      for (auto& part : parts_for(tensors, rank, ranks)) {
        bytes += part.bytes();
        all.push_back(std::move(part));
      }
      CHECK(bytes <= total / static_cast<std::size_t>(ranks) + 2 * 1009 * 4);  // a row more or less
    }
    check_tiling(tensors, all);
  }
}

TEST_CASE("[F05] rows of a flat parameter are blocks of the tensor, whatever its strides") {
  const auto check = [](const at::Tensor& tensor) {
    INFO(tensor.sizes() << " " << tensor.strides());
    const FlatRows rows(tensor.sizes().vec(), tensor.strides().vec());
    REQUIRE(rows.numel() == tensor.numel());
    const auto flat = tensor.as_strided({tensor.numel()}, {1});
    const auto count = rows.row_from(tensor.numel());
    for (std::int64_t begin = 0; begin < count; ++begin) {
      for (std::int64_t end = begin + 1; end <= count; ++end) {
        const auto block = flat.narrow(0, begin * rows.row_numel(), (end - begin) * rows.row_numel());
        auto expected = tensor;
        const auto offsets = rows.offsets(begin), shape = rows.shape(begin, end);
        for (std::size_t d = 0; d < shape.size(); ++d)
          expected = expected.narrow(static_cast<std::int64_t>(d), offsets[d], shape[d]);
        CHECK(rows.block(block).equal(expected));
        const auto cut = block.numel() / 3;
        const auto part = rows.part("w", begin, {block.narrow(0, 0, cut), block.narrow(0, cut, block.numel() - cut)});
        CHECK(values_of(part).equal(expected));
        CHECK((part.offsets == offsets && part.shape == shape));
      }
    }
  };
  check(torch::randn({5, 4}));
  check(torch::randn({4, 5}).t());
  check(torch::randn({1, 6}));
  check(torch::randn({6, 1, 2}));
  check(torch::randn({7}));
  check(torch::randn({}));
  check(torch::randn({3, 4, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast));
}

TEST_CASE("[F05] any block of a tensor is read from a checkpoint of any cut, and no other byte") {
  const ScratchDirectory scratch;
  const auto tensors = odd_tensors();
  const std::int64_t ranks = GENERATE(1, 2, 5);
  TrainingState state;
  state.tensors = tensors;
  for (std::int64_t rank = 0; rank < ranks; ++rank) state.rank_state.emplace_back("{}");
  CheckpointWriter writer(scratch.path(), 3);
  const SaveAttempt attempt{0, "x"};
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    write_checkpoint_part(scratch.path(), attempt, part_of(state, rank));
  const auto saved = writer.publish(attempt, ranks, false);
  CHECK(equal(load_checkpoint(scratch.path(), "latest").state, state));
  const CheckpointFolder folder(saved.path);
  std::mt19937_64 random(11);
  for (int trial = 0; trial < 200; ++trial) {
    const auto& [name, tensor] = tensors[random() % tensors.size()];
    std::vector<std::int64_t> offsets, shape;
    auto expected = tensor;
    for (std::int64_t d = 0; d < tensor.dim(); ++d) {
      const auto begin = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(tensor.size(d) + 1));
      const auto length = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(tensor.size(d) - begin + 1));
      offsets.push_back(begin);
      shape.push_back(length);
      expected = expected.narrow(d, begin, length);
    }
    auto target = torch::zeros(shape, tensor.options());
    if (trial % 3 == 0 && shape.size() == 2) target = torch::zeros({shape[1], shape[0]}, tensor.options()).t();
    folder.read(name, offsets, target);
    CHECK(target.equal(expected));
  }
  if (ranks == 1) return;
  // The last rank's file is damaged: what lies in the others can still be read.
  auto text = read_text(saved.path + "/" + rank_tensor_file(ranks - 1));
  text[text.size() / 2] ^= 1;
  write_text(saved.path + "/" + rank_tensor_file(ranks - 1), text);
  const CheckpointFolder damaged(saved.path);
  CHECK(damaged.read("a").equal(tensors[0].second));
  CHECK_THROWS_WITH(damaged.read("large"),
                    Contains("'large'") && Contains("XXH3") && Contains(rank_tensor_file(ranks - 1)));
}

TEST_CASE("[C03] a hashed file hands out what was written, and never a changed byte") {
  const ScratchDirectory scratch;
  std::mt19937_64 random(5);
  const std::size_t bytes = GENERATE(1, 4096, 1 << 20, (1 << 20) + 1, (5 << 19) + 7);
  std::string text(bytes, '\0');
  for (auto& c : text) c = static_cast<char>(random());
  write_text(scratch / "f", text);
  DigestBuilder builder;
  builder.update(std::as_bytes(std::span(text)));
  const auto digest = builder.finish();
  const auto read = [&](std::uint64_t offset, std::size_t length) {
    const BoundedFile file("reading", scratch / "f");
    HashedFile hashed(file, digest);
    std::string out(length, '\0');
    hashed.read(offset, std::as_writable_bytes(std::span(out)));
    return out;
  };
  for (int trial = 0; trial < 40; ++trial) {
    const auto offset = random() % bytes, length = random() % (bytes - offset + 1);
    CHECK((read(offset, length) == text.substr(offset, length)));
  }
  const auto at = random() % bytes;
  auto changed = text;
  changed[at] ^= 4;
  write_text(scratch / "f", changed);
  CHECK_THROWS_AS(read(at, 1), Error);
  const BoundedFile file("reading", scratch / "f");
  CHECK_THROWS_WITH(HashedFile(file, digest).verify(), Contains("XXH3"));
}

TEST_CASE("[C02] whoever takes over from a publisher killed at any call finishes the same checkpoint") {
  const auto state = small_state(20), before = small_state(10);
  for (int at = 1;; ++at) {
    const ScratchDirectory scratch;
    WholeStateWriter(scratch.path(), 3).save(before, false);
    const SaveAttempt attempt{20, "job-1-1"};
    FaultyFiles files(FaultyFiles::Fault::kill, at, EIO);
    for (std::int64_t rank = 0; rank < 2; ++rank) write_checkpoint_part(scratch.path(), attempt, part_of(state, rank));
    bool killed = true;
    try {
      CheckpointWriter writer(scratch.path(), 3, files, attempt);
      writer.publish(attempt, 2, true);
      killed = files.happened();
    } catch (const Error&) {
    }
    INFO("killed at call " << at);
    CheckpointWriter writer(scratch.path(), 3, real_files(), attempt);
    const auto saved = writer.publish(attempt, 2, true);
    CHECK(saved.warning == "");
    CHECK(equal(load_checkpoint(scratch.path(), "latest").state, state));
    CHECK(equal(load_checkpoint(scratch.path(), "best").state, state));
    CHECK(load_checkpoint(scratch.path(), "step-00000010").state.step == 10);
    for (const auto& entry : fs::directory_iterator(scratch.path()))
      CHECK_FALSE(entry.path().filename().string().starts_with("."));
    if (!killed) break;
  }
}

TEST_CASE("[C02] parts that are not one checkpoint's are not published") {
  const ScratchDirectory scratch;
  WholeStateWriter writer(scratch.path(), 3);
  const SaveAttempt attempt{20, "x"};
  const auto state = small_state(20);
  const auto publish = [&] { return writer.publish(attempt, 2, false); };
  SECTION("one is missing") {
    write_checkpoint_part(scratch.path(), attempt, part_of(state, 0));
    CHECK_THROWS_WITH(publish(), Contains("rank 1") && Contains("file system that all hosts share"));
  }
  SECTION("together they are not the whole") {
    auto part = part_of(state, 1);
    std::erase_if(part.tensors, [](const auto& tensor) { return tensor.name == "model.half"; });
    REQUIRE(part.tensors.size() < part_of(state, 1).tensors.size());
    write_checkpoint_part(scratch.path(), attempt, part_of(state, 0));
    write_checkpoint_part(scratch.path(), attempt, part);
    CHECK_THROWS_WITH(publish(), Contains("not covered"));
  }
  SECTION("they have something twice") {
    auto part = part_of(state, 1);
    for (auto& tensor : part_of(state, 0).tensors) {
      if (tensor.name == "model.weight") part.tensors.push_back(tensor);
    }
    write_checkpoint_part(scratch.path(), attempt, part_of(state, 0));
    write_checkpoint_part(scratch.path(), attempt, part);
    CHECK_THROWS_WITH(publish(), Contains("'model.weight'"));
  }
  SECTION("they disagree") {
    auto other = small_state(20);
    for (auto& [name, tensor] : other.tensors) tensor = tensor.to(at::kDouble);
    write_checkpoint_part(scratch.path(), attempt, part_of(state, 0));
    write_checkpoint_part(scratch.path(), attempt, part_of(other, 1));
    CHECK_THROWS_AS(publish(), Error);
  }
  CHECK_THROWS_WITH(load_checkpoint(scratch.path(), "latest"), Contains("there is no checkpoint"));
  CHECK(writer.save(small_state(30), false).warning == "");
  for (const auto& entry : fs::directory_iterator(scratch.path()))
    CHECK_FALSE(entry.path().filename().string().starts_with("."));
}
