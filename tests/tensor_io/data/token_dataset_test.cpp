#include "tensor_io/data/token_dataset.hpp"

#include <torch/torch.h>

#include <filesystem>

#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;

namespace {

std::string words(const std::vector<std::uint16_t>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), 2 * ids.size()};
}

std::string llm_header(std::uint32_t magic, std::uint32_t version, std::uint32_t count) {
  std::vector<std::uint32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return {reinterpret_cast<const char*>(header.data()), 4 * header.size()};
}

std::vector<std::uint16_t> counting(std::uint16_t first, std::size_t count) {
  std::vector<std::uint16_t> ids(count);
  for (std::size_t i = 0; i < count; ++i) ids[i] = static_cast<std::uint16_t>(first + i);
  return ids;
}

TokenOptions options(std::vector<std::string> paths, std::int64_t block_size = 4, std::int64_t vocab_size = 1000) {
  TokenOptions options;
  options.paths = std::move(paths);
  options.block_size = block_size;
  options.vocab_size = vocab_size;
  return options;
}

// Every sample's input and target, one list of numbers each.
std::vector<std::vector<std::int64_t>> samples(const std::shared_ptr<const Dataset>& data) {
  std::vector<std::vector<std::int64_t>> all;
  for (std::int64_t i = 0; data && i < data->size(); ++i) {
    const auto example = data->get(i, {});
    for (const auto& part : {example.input, example.target}) {
      const auto* ids = part.contiguous().data_ptr<std::int64_t>();
      all.emplace_back(ids, ids + part.numel());
    }
  }
  return all;
}

using Samples = std::vector<std::vector<std::int64_t>>;

}  // namespace

TEST_CASE("[S05] token shards of nanoGPT and llm.c give the same samples, none across two shards") {
  testing::ScratchDirectory folder;
  const bool header = GENERATE(false, true);
  testing::write_text(folder / "x_train_0.bin", (header ? llm_header(20240520, 1, 10) : "") + words(counting(0, 10)));
  testing::write_text(folder / "x_train_1.bin", (header ? llm_header(20240520, 1, 6) : "") + words(counting(100, 6)));
  testing::write_text(folder / "x_val_0.bin", (header ? llm_header(20240520, 1, 5) : "") + words(counting(200, 5)));
  testing::write_text(folder / "readme.txt", "not a shard");
  const auto [train, held_out] = read_tokens(options({folder.path()}));
  CHECK(samples(train) ==
        Samples{{0, 1, 2, 3}, {1, 2, 3, 4}, {4, 5, 6, 7}, {5, 6, 7, 8}, {100, 101, 102, 103}, {101, 102, 103, 104}});
  CHECK(samples(held_out) == Samples{{200, 201, 202, 203}, {201, 202, 203, 204}});
  CHECK(train->tokens_per_sample() == 4);
}

TEST_CASE("[S05] a damaged or foreign token shard is refused with file, offset and reason") {
  testing::ScratchDirectory folder;
  const auto path = folder / "data.bin";
  const auto refused = [&](const std::string& content, const std::string& reason) {
    testing::write_text(path, content);
    CHECK_THROWS_WITH(read_tokens(options({path})), Catch::Contains(path) && Catch::Contains(reason));
  };
  refused("abc", "offset 2: its 3 bytes are not a whole number of uint16");
  refused(llm_header(20240520, 2, 6) + words(counting(0, 6)), "offset 4, version: 2");
  refused(llm_header(20240520, 1, 7) + words(counting(0, 6)), "offset 8, number of tokens: 7, but the file holds 6");
  refused(llm_header(20240520, 1, 0xffffffff) + words(counting(0, 6)), "offset 8, number of tokens: 4294967295");
  SECTION("too few tokens") {
    testing::write_text(path, words(counting(0, 4)));
    CHECK_THROWS_WITH(read_tokens(options({path})),
                      Catch::Contains("4 tokens to train on are too few for one sample of 4"));
  }
  SECTION("an id beyond the vocabulary") {
    auto ids = counting(0, 12);
    ids[6] = 1000;
    const bool header = GENERATE(false, true);
    testing::write_text(path, (header ? llm_header(20240520, 1, 12) : "") + words(ids));
    const auto train = read_tokens(options({path})).first;
    CHECK_NOTHROW(train->get(0, {}));
    CHECK_THROWS_WITH(train->get(1, {}), Catch::Contains("offset " + std::to_string(12 + (header ? 1024 : 0)) +
                                                         ": token id 1000 is not below vocab_size 1000"));
  }
  SECTION("cut off while it is read") {
    testing::write_text(path, words(counting(0, 12)));
    const auto train = read_tokens(options({path})).first;
    std::filesystem::resize_file(path, 10);
    CHECK_THROWS_WITH(train->get(1, {}), Catch::Contains("it has 10 bytes, at the start it held 12 tokens"));
  }
}

TEST_CASE("[S05] text is its bytes, folders are searched in order, links and binary files passed over") {
  testing::ScratchDirectory folder;
  std::filesystem::create_directories(folder / "sub");
  testing::write_text(folder / "b.txt", "fgh");
  testing::write_text(folder / "a.txt", "abcde");
  testing::write_text(folder / "sub/c.md", "\xc3\xa4!");
  testing::write_text(folder / "picture.png", std::string("\x89PNG\0\0", 6));
  std::filesystem::create_symlink(folder / "a.txt", folder / "z.txt");
  const auto train = read_tokens(options({folder.path()}, 12, 256)).first;
  CHECK(samples(train) == Samples{{'a', 'b', 'c', 'd', 'e', 0, 'f', 'g', 'h', 0, 0xc3, 0xa4},
                                  {'b', 'c', 'd', 'e', 0, 'f', 'g', 'h', 0, 0xc3, 0xa4, '!'}});
  CHECK_THROWS_WITH(read_tokens(options({folder / "picture.png"}, 4, 256)), Catch::Contains("offset 4: a NUL byte"));
  CHECK_THROWS_WITH(read_tokens(options({folder / "missing"}, 4, 256)),
                    Catch::Contains("there is no such file or folder"));
  std::filesystem::create_symlink("loop", folder.path() + "/loop");
  for (const auto& path : {folder / "loop", folder / std::string(300, 'n')})
    CHECK_THROWS_WITH(read_tokens(options({path}, 4, 256)),
                      Catch::StartsWith("data_dir: '") && Catch::Contains("cannot be read: "));
  std::filesystem::remove(folder.path() + "/loop");
  CHECK_THROWS_WITH(read_tokens(options({folder.path()}, 4, 255)),
                    Catch::Contains("255 is too few for the bytes of text"));
}

TEST_CASE("[S05] every twentieth sample is held out where no shard says so, and no sample is in both parts") {
  testing::ScratchDirectory folder;
  testing::write_text(folder / "data.bin", words(counting(0, 401)));
  const auto [train, held_out] = read_tokens(options({folder.path()}));
  CHECK(train->size() == 95);
  CHECK(held_out->size() == 5);
  std::set<std::int64_t> first;
  for (const auto& part : {train, held_out}) {
    for (std::int64_t i = 0; i < part->size(); ++i) first.insert(part->get(i, {}).input[0].item<std::int64_t>());
  }
  CHECK(first.size() == 100);
}

TEST_CASE("[D5] ids without a header are never read with a width that their file or the vocabulary speaks against") {
  testing::ScratchDirectory folder;
  const auto path = folder / "data.bin";
  std::vector<std::uint16_t> halves;  // of uint32 ids 100000, 100003, ...
  for (std::uint32_t id = 100'000; id < 100'060; id += 3) {
    halves.push_back(static_cast<std::uint16_t>(id));
    halves.push_back(static_cast<std::uint16_t>(id >> 16U));
  }
  testing::write_text(path, words(halves));
  auto wanted = options({path}, 4, 50257);
  CHECK_THROWS_WITH(read_tokens(wanted),
                    Catch::Contains(path) && Catch::Contains("as in ids of 32") && Catch::Contains("token_bits 32"));
  wanted.vocab_size = 128'256;
  CHECK_THROWS_WITH(read_tokens(wanted),
                    Catch::Contains("vocab_size 128256 needs more") && Catch::Contains("token_bits 32"));
  wanted.token_bits = 32;
  CHECK(samples(read_tokens(wanted).first).at(1) == std::vector<std::int64_t>{100'003, 100'006, 100'009, 100'012});
  wanted.token_bits = 16;
  CHECK(read_tokens(wanted).first->size() == 9);
  wanted.token_bits = 8;
  CHECK_THROWS_WITH(read_tokens(wanted), Catch::Contains("token_bits: 8 is not one of 0, 16 and 32"));
}

TEST_CASE(
    "[D5] of a large shard the first, the middle and the last ids are looked at, and one of them is evidence enough") {
  testing::ScratchDirectory folder;
  const auto path = folder / "data.bin";
  std::vector<std::uint16_t> ids(200'001, 7);
  for (std::size_t i = 0; i < ids.size(); i += 2) ids[i] = static_cast<std::uint16_t>(1000 + i % 999);
  for (std::size_t i = 1; i < ids.size(); i += 2) ids[i] = 1;
  testing::write_text(path, words(ids));
  CHECK_THROWS_WITH(read_tokens(options({path}, 4, 5000)), Catch::Contains("as in ids of 32"));
  for (const std::size_t place : {std::size_t{101}, ids.size() / 2 + 100, ids.size() - 101}) {
    auto other = ids;
    other[place | 1U] = 4999;
    testing::write_text(path, words(other));
    const auto train = read_tokens(options({path}, 4, 5000)).first;
    CHECK_THAT(train->description(),
               Catch::Contains("200,001 of 16 bits in 1 shard, largest of those looked at 4,999"));
  }
}

TEST_CASE("[D5] the description of token files names their number, width and largest id, and how they were split") {
  testing::ScratchDirectory folder;
  testing::write_text(folder / "train.bin", llm_header(20240520, 1, 10) + words(counting(990, 10)));
  CHECK(read_tokens(options({folder.path()})).first->description() ==
        "tokens: 10 of 16 bits in 1 shard, largest 999; samples of 4");
  testing::write_text(folder / "val.bin", words(counting(900, 10)));
  testing::write_text(folder / "x_test_0.bin", words(counting(100, 10)));
  testing::write_text(folder / "contest.bin", words(counting(100, 10)));
  const auto [train, held_out] = read_tokens(options({folder.path()}));
  CHECK(train->description() ==
        "tokens: 30 of 16 bits in 3 shards, largest 999, 1 named test passed over; samples of 4");
  CHECK(held_out->description() == "shards with val in their name");
  CHECK(train->size() == 4);
  testing::write_text(folder / "a.txt", "to be or not to be");
  CHECK(read_tokens(options({folder / "a.txt"})).first->description() == "tokens: 18 bytes of text; samples of 4");
  CHECK_THROWS_WITH(read_tokens(options({folder / "val.bin"})),
                    Catch::Contains("less those of shards with val in their name"));
}
