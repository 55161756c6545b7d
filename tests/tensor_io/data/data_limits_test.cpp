// What data sets of many files may take: memory, descriptors; and how ranks see that they have the same ones.
#include <sys/resource.h>

#include <array>
#include <cstdio>
#include <filesystem>

#include "tensor_io/base/error.hpp"
#include "tensor_io/data/datasets.hpp"
#include "tensor_io/data/image_dataset.hpp"
#include "tensor_io/data/image_folder.hpp"
#include "tensor_io/data/token_dataset.hpp"
#include "tensor_io/data/webdataset.hpp"
#include "tests/catch.hpp"
#include "tests/support/scratch_directory.hpp"

#include <ATen/ops/zeros.h>

using namespace troupe;

namespace {

// A plain tar file with an empty member 0.cls, 1.cls, … for each sample.
std::string tar_of(int samples) {
  std::string tar;
  for (int i = 0; i < samples; ++i) {
    std::array<char, 512> header{};
    std::snprintf(header.data(), 100, "%d.cls", i);
    std::snprintf(header.data() + 100, 8, "0000644");
    std::snprintf(header.data() + 124, 12, "%011o", 0);
    std::snprintf(header.data() + 136, 12, "%011o", 0);
    std::fill_n(header.data() + 148, 8, ' ');
    header[156] = '0';
    std::snprintf(header.data() + 257, 6, "ustar");
    header[263] = header[264] = '0';
    unsigned sum = 0;
    for (const char c : header) sum += static_cast<unsigned char>(c);
    std::snprintf(header.data() + 148, 8, "%06o", sum);
    tar.append(header.data(), header.size());
  }
  return tar + std::string(1024, '\0');
}

std::string shard_name(int i) { return "part-" + std::to_string(1000 + i) + ".tar"; }

std::string index_of(const std::string& shard, int samples) {
  return R"({"shardlist": [{"url": ")" + shard + R"(", "nsamples": )" + std::to_string(samples) + "}]}";
}

// No more descriptors than are open now and `more`.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t more) {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    rlim_t highest = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
      highest = std::max<rlim_t>(highest, std::stoul(entry.path().filename().string()));
    auto few = before_;
    few.rlim_cur = highest + 1 + more;
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
};

std::uint64_t hash_of_tokens(const std::string& folder) {
  TokenOptions options;
  options.paths = {folder};
  options.block_size = 4;
  return read_tokens(options).first->files_hash();
}

}  // namespace

TEST_CASE("[S05] of any number of tar shards the headers of the 128 that were read last are kept") {
  testing::ScratchDirectory folder;
  constexpr int kShards = 200;
  for (int i = 0; i < kShards; ++i) testing::write_text(folder / shard_name(i), tar_of(2));
  const ShardFolder shards(folder.path(), false, 100);  // without an index each is read once, to be counted
  CHECK(shards.opened() == kShards);
  CHECK(shards.kept() == ShardFolder::kMostKept);
  const auto last = shards.open(kShards - ShardFolder::kMostKept);  // the one that would go next
  const auto first = shards.open(0);                                // takes another one's place
  CHECK(shards.open(kShards - ShardFolder::kMostKept) == last);
  for (std::size_t i = 1; i < kShards; ++i) CHECK(shards.open(i)->samples().size() == 2);
  CHECK(shards.kept() == ShardFolder::kMostKept);
  CHECK(first->samples().size() == 2);  // who uses one has it
  CHECK(shards.open(0) != first);
  const ShardFolder small(folder.path(), false, 2 * kShards);  // few samples: all of them fit
  CHECK(small.kept() == kShards);
  SECTION("a shard that changed meanwhile is noticed when it is read again") {
    for (std::size_t i = 1; i < kShards; ++i) (void)shards.open(i);
    testing::write_text(folder / shard_name(0), tar_of(3));
    CHECK_THROWS_WITH(shards.open(0), Catch::Contains("3 samples, at the start it had 2; leave the shards alone"));
  }
}

TEST_CASE("[S05] each folder of a pattern has an index.json of its own") {
  testing::ScratchDirectory folder;
  for (const auto& [name, samples] : std::vector<std::pair<std::string, int>>{{"a", 1}, {"b", 2}}) {
    std::filesystem::create_directory(folder / name);
    testing::write_text(folder / (name + "/" + shard_name(0)), tar_of(samples));
    testing::write_text(folder / (name + "/index.json"), index_of(shard_name(0), samples));
  }
  const ShardFolder shards(folder / ("{a,b}/" + shard_name(0)), false);
  CHECK(shards.samples(0) == 1);
  CHECK(shards.samples(1) == 2);
  CHECK(shards.opened() == 0);
  CHECK(shards.open(1)->samples().size() == 2);
  testing::write_text(folder / "b/index.json", "{\"shardlist\": [");
  CHECK_THROWS_WITH(ShardFolder(folder / ("{a,b}/" + shard_name(0)), false),
                    Catch::Contains("b/index.json") && Catch::Contains("make the index again, or remove it"));
}

TEST_CASE("[S05] any number of token shards is read with few file descriptors") {
  testing::ScratchDirectory folder;
  constexpr int kShards = 40;
  for (int i = 0; i < kShards; ++i)
    testing::write_text(folder / ("train_" + std::to_string(i) + ".bin"), std::string(2 * 9, '\1'));
  TokenOptions options;
  options.paths = {folder.path()};
  options.block_size = 4;
  options.vocab_size = 1000;
  const FewDescriptors few(8);
  const auto data = read_tokens(options).first;
  for (std::int64_t i = 0; i < data->size(); ++i) CHECK(data->get(i, {}).input[0].item<std::int64_t>() == 257);
}

TEST_CASE("[S05] data sets of other files have another hash, wherever they lie") {
  testing::ScratchDirectory one, other;
  for (const auto* folder : {&one, &other}) {
    for (const int i : {0, 1})
      testing::write_text(*folder / ("train_" + std::to_string(i) + ".bin"), std::string(40, '\1'));
  }
  const auto tokens = hash_of_tokens(one.path());
  CHECK(tokens != 0);
  CHECK(tokens == hash_of_tokens(other.path()));
  // As many tokens together, but elsewhere.
  testing::write_text(other / "train_0.bin", std::string(38, '\1'));
  testing::write_text(other / "train_1.bin", std::string(42, '\1'));
  CHECK(tokens != hash_of_tokens(other.path()));

  DataOptions options;
  const auto shards = [&](const std::string& folder) {
    const auto held = std::make_shared<const ShardFolder>(folder, false);
    return WebDataset(held, {0, 1}, WebDataset::Part::all, ImageReader(options, false), 3).files_hash();
  };
  for (const auto* folder : {&one, &other}) {
    for (const int i : {0, 1}) testing::write_text(*folder / shard_name(i), tar_of(2));
  }
  const auto tar = shards(one.path());
  CHECK(tar == shards(other.path()));
  testing::write_text(other / shard_name(0), tar_of(1));
  testing::write_text(other / shard_name(1), tar_of(3));
  CHECK(tar != shards(other.path()));

  const auto pictures = [&](const std::string& folder, const std::string& name) {
    return ImageFolder("pictures", folder, {{folder + "/cat/" + name, 0}, {folder + "/dog/b.jpg", 1}},
                       ImageReader(options, false))
        .files_hash();
  };
  CHECK(pictures("/here", "a.jpg") == pictures("/there/else", "a.jpg"));
  CHECK(pictures("/here", "a.jpg") != pictures("/here", "c.jpg"));
}

TEST_CASE("[S03] small batches of what is in memory are quick, large, augmented and decoded ones are not") {
  ImageTransform plain, augmented;
  augmented.augment = true;
  const auto images = at::zeros({10, 1, 28, 28}, at::kByte), labels = at::zeros({10}, at::kLong);
  CHECK(ImageDataset("images", images, labels, 10, plain).quick(128));
  CHECK_FALSE(ImageDataset("images", images, labels, 10, plain).quick(1024));
  CHECK_FALSE(ImageDataset("images", images, labels, 10, augmented).quick(1));
  const TensorDataset rows(at::zeros({10, 1000}), at::zeros({10}, at::kLong));
  CHECK(rows.quick(200));
  CHECK_FALSE(rows.quick(300));
  CHECK_FALSE(SyntheticImages({}, 1, 0, 10).quick(1));
}
