// Pictures in folders and in tar shards: read as the usual tools wrote them, and refused where they are broken.
#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>

#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "tensor_io/base/error.hpp"
#include "tensor_io/data/bad_samples.hpp"
#include "tensor_io/data/image_decode.hpp"
#include "tensor_io/data/image_folder.hpp"
#include "tensor_io/data/sampler.hpp"
#include "tensor_io/data/token_dataset.hpp"
#include "tensor_io/data/webdataset.hpp"
#include "tensor_io/files/braces.hpp"
#include "tests/catch.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;

namespace {

std::string content_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

at::Tensor decode(const std::string& content, std::int64_t channels = 3, std::int64_t least_side = 0) {
  return decode_image(std::as_bytes(std::span(content)), "here.jpg", channels, least_side);
}

DataOptions pictures(const std::string& kind, const std::string& folder) {
  DataOptions options;
  options.data = kind;
  options.data_dir = folder;
  options.image_size = 16;
  options.num_classes = 3;
  return options;
}

// What write_data.py wrote and said; nothing where it cannot run.
std::optional<nlohmann::json> written(const testing::ScratchDirectory& folder) {
  const auto said = folder / "said.json";
  const int status = std::system(
      ("/usr/bin/python3 " TROUPE_SOURCE_DIR "/tests/python/write_data.py '" + folder.path() + "' > '" + said + "'")
          .c_str());
  const auto text = content_of(said);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
    WARN(text);
    return std::nullopt;
  }
  REQUIRE(status == 0);
  return nlohmann::json::parse(text);
}

// A PNG that says it has so many pixels, and holds none.
std::string png_of(std::uint32_t width, std::uint32_t height) {
  std::string chunk = "IHDR";
  for (const auto value : {width, height}) {
    for (int shift = 24; shift >= 0; shift -= 8) chunk.push_back(static_cast<char>(value >> shift & 0xff));
  }
  chunk += std::string("\x08\x02\0\0\0", 5);
  std::uint32_t crc = 0xffffffff;
  for (const char c : chunk) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
  }
  std::string png = std::string("\x89PNG\r\n\x1a\n", 8) + std::string("\0\0\0\x0d", 4) + chunk;
  for (int shift = 24; shift >= 0; shift -= 8) png.push_back(static_cast<char>(~crc >> shift & 0xff));
  return png + std::string("\0\0\0\0IDAT\x35\xaf\x06\x1e", 12);
}

}  // namespace

TEST_CASE("[S05] JPEG and PNG files of every kind that Pillow writes are decoded to Pillow's pixels") {
  testing::ScratchDirectory folder;
  const auto said = written(folder);
  if (!said) return;
  CHECK((*said)["pictures"].size() == 15);
  for (const auto& [name, size] : (*said)["pictures"].items()) {
    INFO(name);
    const auto path = folder / ("pictures/" + name);
    const auto image = decode(content_of(path));
    auto expected = content_of(path + ".rgb");
    const auto height = size[0].get<std::int64_t>(), width = size[1].get<std::int64_t>();
    CHECK(image.equal(at::from_blob(expected.data(), {height, width, 3}, at::kByte)));
  }
  CHECK(decode(content_of(folder / "pictures/grey.png"), 1).sizes() == at::IntArrayRef({4, 15, 1}));
  // 64x48: at half its size where that is twice what is wanted.
  CHECK(decode(content_of(folder / "pictures/progressive.jpeg"), 3, 12).sizes() == at::IntArrayRef({24, 32, 3}));
  CHECK(decode(content_of(folder / "pictures/progressive.jpeg"), 3, 13).sizes() == at::IntArrayRef({48, 64, 3}));
}

TEST_CASE("[S05] a picture that is cut off, foreign or absurdly large is refused with its reason") {
  testing::ScratchDirectory folder;
  if (!written(folder)) return;
  const auto refused = [](const std::string& content, const std::string& reason) {
    INFO(reason);
    CHECK_THROWS_WITH(decode(content),
                      Catch::Contains("here.jpg") && Catch::Contains(reason) && Catch::Contains("on_bad_sample"));
  };
  for (const char* name : {"plain.jpg", "progressive.jpeg", "grey.jpg"}) {
    const auto jpeg = content_of(folder / (std::string("pictures/") + name));
    refused(jpeg.substr(0, jpeg.size() / 2), "");  // within the tables or a scan
    refused(jpeg.substr(0, jpeg.size() - 40), "");
    refused(jpeg.substr(0, jpeg.size() - 2), "Premature end of JPEG file");
    // What stands between two segments is no harm.
    CHECK(decode(jpeg.substr(0, jpeg.size() - 2) + std::string(7, 'x') + "\xff\xd9").equal(decode(jpeg)));
    refused(jpeg.substr(0, 20), "JPEG header");
  }
  auto odd = content_of(folder / "pictures/full_chroma.jpg");
  odd[odd.find("\xff\xc0") + 11] = 0x31;  // three times as many columns of light as of colour
  for (const auto& content : {odd, content_of(folder / "pictures/ink_420.jpg")})
    refused(content, "4:4:4, 4:2:2, 4:2:0, 4:4:0, 4:1:1 and grey, or 4:4:4 for CMYK");
  const auto png = content_of(folder / "pictures/plain.png");
  for (const auto bytes : {png.size() / 2, png.size() - 14, std::size_t{20}}) refused(png.substr(0, bytes), "offset ");
  auto flipped = png;
  flipped[png.size() / 2] = static_cast<char>(flipped[png.size() / 2] ^ 0x10);
  refused(flipped, "pixels: ");
  refused("", "neither JPEG nor PNG");
  refused("GIF89a and more", "neither JPEG nor PNG");
  refused(png_of(60'000, 60'000), "60000x60000 pixels, 1 to 67108864 are allowed");
  refused(png_of(8'000, 8'000), "8000x8000 pixels, more than its 45 bytes can hold");
  refused(png_of(0, 5), "offset ");
}

TEST_CASE("[S05] a picture is decoded by its own tables, whatever was decoded before") {
  testing::ScratchDirectory folder;
  if (!written(folder)) return;
  const auto jpeg = content_of(folder / "pictures/plain.jpg");
  auto bare = jpeg;  // without its Huffman tables
  for (auto at = bare.find("\xff\xc4"); at != std::string::npos; at = bare.find("\xff\xc4", at)) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bare[at + i]); };
    bare.erase(at, 2U + (byte(2) << 8U) + byte(3));
  }
  auto rough = jpeg;  // with other quantisation
  const auto table = rough.find("\xff\xdb");
  REQUIRE(table != std::string::npos);
  for (std::size_t i = 5; i < 69; ++i) rough[table + i] = 50;
  auto none = jpeg;  // ... and with none
  none.replace(none.find("\xff\xdb"), 2, "\xff\xec");
  const auto outcome = [](const std::string& content) {
    try {
      return decode(content);
    } catch (const Error&) {
      return at::Tensor();
    }
  };
  for (const auto& content : {bare, none}) {
    at::Tensor alone;
    std::thread([&] { alone = outcome(content); }).join();
    decode(rough);
    const auto after = outcome(content);
    REQUIRE(after.defined() == alone.defined());
    CHECK((!alone.defined() || after.equal(alone)));
  }
}

TEST_CASE("[S05] a folder of pictures is a data set: classes by name, squares from the middle as Pillow resizes them") {
  testing::ScratchDirectory folder;
  const auto said = written(folder);
  if (!said) return;
  const auto [train, held_out] = make_datasets(pictures("image_folder", folder / "classes"), 1);
  REQUIRE(train->size() == 10);
  REQUIRE(held_out->size() == 2);  // every fifth
  const auto& files = dynamic_cast<const ImageFolder&>(*train).files();
  const auto mean = at::tensor({0.485f, 0.456f, 0.406f}).view({3, 1, 1}),
             stddev = at::tensor({0.229f, 0.224f, 0.225f}).view({3, 1, 1});
  for (std::int64_t i = 0; i < train->size(); ++i) {
    const auto example = train->get(i, {});
    const auto& path = files[static_cast<std::size_t>(i)].path;
    INFO(path);
    auto bytes = (*said)["squares"][path.substr(path.find("classes/") + 8)].get<std::vector<std::uint8_t>>();
    const auto square = at::from_blob(bytes.data(), {16, 16, 3}, at::kByte).permute({2, 0, 1}).to(at::kFloat) / 255;
    CHECK((example.input * stddev + mean - square).abs().max().item<float>() < 1.01f / 255);  // rounded once more
    CHECK(example.target.item<std::int64_t>() == (path.find("/dog/") != std::string::npos ? 1 : 0));
  }
  SECTION("train and val") {
    std::filesystem::create_directory(folder / "set");
    std::filesystem::create_directory_symlink(folder / "classes", folder / "set/train");
    std::filesystem::create_directories(folder / "set/val/dog");
    std::filesystem::create_symlink(folder / "classes/cat/01.jpg", folder / "set/val/dog/x.JPG");
    const auto [all, rest] = make_datasets(pictures("image_folder", folder / "set"), 1);
    CHECK(all->size() == 12);
    CHECK(rest->size() == 1);
    CHECK(rest->get(0, {}).target.item<std::int64_t>() == 1);
    std::filesystem::create_directories(folder / "set/val/cow");
    CHECK_THROWS_WITH(make_datasets(pictures("image_folder", folder / "set"), 1),
                      Catch::Contains("'cow' is not in train/"));
  }
  SECTION("augmentation is a function of seed, epoch and sample, and cuts another part in each epoch") {
    auto options = pictures("image_folder", folder / "classes");
    options.augment = true;
    const auto data = make_datasets(options, 1).first;
    CHECK(data->get(3, {7, 2}).input.equal(data->get(3, {7, 2}).input));
    CHECK_FALSE(data->get(3, {7, 2}).input.equal(data->get(3, {7, 3}).input));
    CHECK_FALSE(data->get(3, {7, 2}).input.equal(data->get(3, {8, 2}).input));
  }
  SECTION("what is wrong is named") {
    auto options = pictures("image_folder", folder / "classes");
    options.num_classes = 1;
    CHECK_THROWS_WITH(make_datasets(options, 1), Catch::Contains("has 2 classes, num_classes is 1"));
    options = pictures("image_folder", folder / "classes");
    options.image_size = 0;
    CHECK_THROWS_WITH(make_datasets(options, 1), Catch::Contains("image_size"));
    CHECK_THROWS_WITH(make_datasets(pictures("image_folder", folder / "nowhere"), 1), Catch::Contains("nowhere"));
    CHECK_THROWS_WITH(make_datasets(pictures("image_folder", folder / "classes/cat"), 1),
                      Catch::Contains("it holds no folders"));
    std::filesystem::create_directory(folder / "classes/empty");
    CHECK_THROWS_WITH(make_datasets(pictures("image_folder", folder / "classes"), 1),
                      Catch::Contains("empty: it holds no .jpg"));
  }
}

TEST_CASE("[S05] a random crop lies inside, has 8 to 100 % of the area, and is the middle where none fits") {
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const auto box = random_crop(75, 100, i);
    CHECK((box.top >= 0 && box.left >= 0 && box.top + box.height <= 75 && box.left + box.width <= 100));
    CHECK((box.height * box.width > 75 * 100 * 7 / 100));
  }
  CHECK((random_crop(1, 500, 3) == middle_square(1, 500)));
  CHECK((middle_square(30, 41) == CropBox{0, 5, 30, 30}));
}

TEST_CASE("[S05] tar shards of every dialect that Python's tarfile writes are samples by name") {
  testing::ScratchDirectory folder;
  const auto said = written(folder);
  if (!said) return;
  for (const auto& [name, members] : (*said)["members"].items()) {
    const TarShard shard(folder / ("shards/" + name));
    std::size_t member = 0;
    for (const auto& sample : shard.samples()) {
      for (const auto& part : sample.parts) {
        const auto& expected = members[member++];
        CHECK(sample.key + "." + part.extension == expected[0].get<std::string>());
        CHECK(part.offset == expected[1].get<std::uint64_t>());
        CHECK(part.bytes == expected[2].get<std::uint64_t>());
      }
    }
    CHECK(member == members.size());
  }
  const auto by_folder = make_datasets(pictures("webdataset", folder / "shards"), 1).first;
  const auto data = make_datasets(pictures("webdataset", folder / "shards/part-{000000..000003}.tar"), 1).first;
  CHECK(data->size() == 24);
  CHECK(data->shard_sizes() == std::vector<std::int64_t>{5, 9, 3, 7});
  CHECK(data->get(6, {}).target.item<std::int64_t>() == 2);  // shard 1, sample 1
  CHECK(data->get(6, {}).input.equal(by_folder->get(6, {}).input));
  CHECK(data->get(0, {}).input.sizes() == at::IntArrayRef({3, 16, 16}));
  SECTION("shards with val in their name are held out") {
    std::filesystem::rename(folder / "shards/part-000003.tar", folder / "shards/val-0.tar");
    const auto [train, held_out] = make_datasets(pictures("webdataset", folder / "shards"), 1);
    CHECK(train->size() == 17);
    CHECK(held_out->size() == 7);
    CHECK(held_out->get(0, {}).target.item<std::int64_t>() == 0);
  }
}

TEST_CASE(
    "[S05] a tar shard that is cut off, compressed, foreign or lacks a member is refused with file, place and reason") {
  testing::ScratchDirectory folder;
  const auto said = written(folder);
  if (!said) return;
  const auto path = folder / "shards/part-000001.tar";
  const auto whole = content_of(path);
  const auto refused = [&](const std::string& content, const std::string& reason) {
    INFO(reason);
    testing::write_text(path, content);
    CHECK_THROWS_WITH(TarShard(path), Catch::Contains(path) && Catch::Contains(reason));
  };
  const auto& third = (*said)["members"]["part-000001.tar"][6];  // of sample 2
  const auto inside = third[1].get<std::size_t>() + third[2].get<std::size_t>() / 2;
  refused(whole.substr(0, inside), "bytes go beyond the file's end at " + std::to_string(inside));
  refused(whole.substr(0, third[1].get<std::size_t>() - 100), "offset ");
  refused(std::string("\x1f\x8b\x08\0\0\0", 6) + whole, "only a plain tar can be read");
  refused(std::string(4096, 'x'), "offset 0");
  auto flipped = whole;
  flipped[150] = '9';  // in the first header's checksum
  refused(flipped, "offset 0");
  SECTION("skip uses what comes before the cut, and says so") {
    testing::write_text(path, whole.substr(0, inside));
    auto options = pictures("webdataset", folder / "shards");
    options.on_bad_sample = "skip";
    const auto data = make_datasets(options, 1).first;
    CHECK(data->shard_sizes() == std::vector<std::int64_t>{5, 2, 3, 7});
    const auto notices = data->take_notices();
    REQUIRE(notices.size() == 1);
    CHECK_THAT(notices[0],
               Catch::Contains("go beyond the file's end") && Catch::Contains("its first 2 samples are used"));
  }
  SECTION("skip, where index.json counts what is cut off") {
    testing::write_text(path, whole.substr(0, inside));
    nlohmann::json list = nlohmann::json::array();
    for (const auto& [shard, count] : std::vector<std::pair<int, int>>{{0, 5}, {1, 19}, {2, 3}, {3, 7}})
      list.push_back({{"url", "part-00000" + std::to_string(shard) + ".tar"}, {"nsamples", count}});
    testing::write_text(folder / "shards/index.json", nlohmann::json{{"wids_version", 1}, {"shardlist", list}}.dump());
    auto options = pictures("webdataset", folder / "shards");
    options.on_bad_sample = "skip";
    const auto data = make_datasets(options, 1).first;
    CHECK(data->shard_sizes() == std::vector<std::int64_t>{5, 19, 3, 7});
    CHECK(data->get(5 + 16, {}).input.equal(data->get(5, {}).input));
    CHECK(data->get(5 + 17, {}).input.equal(data->get(5 + 1, {}).input));
    CHECK(data->take_notices().size() == 1);
    list[2]["nsamples"] = 2;  // of a shard that is whole
    testing::write_text(folder / "shards/index.json", nlohmann::json{{"wids_version", 1}, {"shardlist", list}}.dump());
    CHECK_THROWS_WITH(make_datasets(options, 1).first->get(24, {}), Catch::Contains("3 samples, index.json says 2"));
  }
  SECTION("labels") {
    testing::write_text(path, whole);
    auto options = pictures("webdataset", folder / "shards");
    options.num_classes = 2;
    CHECK_THROWS_WITH(make_datasets(options, 1).first->get(2, {}),
                      Catch::Contains("'photos.v1/0_002'") && Catch::Contains("num_classes 2"));
  }
}

TEST_CASE("[S05] with index.json a rank opens its own shards alone, and an index that is wrong is refused") {
  testing::ScratchDirectory folder;
  if (!written(folder)) return;
  const auto index = [&](int of_first) {
    nlohmann::json list = nlohmann::json::array();
    for (const auto& [shard, count] : std::vector<std::pair<int, int>>{{0, of_first}, {1, 9}, {2, 3}, {3, 7}})
      list.push_back({{"url", "part-00000" + std::to_string(shard) + ".tar"}, {"nsamples", count}});
    testing::write_text(folder / "shards/index.json", nlohmann::json{{"wids_version", 1}, {"shardlist", list}}.dump());
  };
  index(5);
  const auto shards = std::make_shared<const ShardFolder>(folder / "shards", false);
  CHECK(shards->opened() == 0);
  const WebDataset data(shards, {0, 1, 2, 3}, WebDataset::Part::all, ImageReader(pictures("webdataset", ""), false), 3);
  SamplerOptions options;
  options.dataset_size = data.size();
  options.batch_size = 8;
  options.world_size = 2;
  options.shard_sizes = data.shard_sizes();
  const DistributedSampler sampler(options);
  for (std::int64_t step = 0; step < sampler.steps_per_epoch(); ++step)
    data.get_batch(sampler.batch(0, step, 0).indices, {});
  CHECK(shards->opened() < 4);
  index(6);
  CHECK_THROWS_WITH(make_datasets(pictures("webdataset", folder / "shards"), 1).first->get(0, {}),
                    Catch::Contains("part-000000.tar") && Catch::Contains("5 samples, index.json says 6"));
  testing::write_text(folder / "shards/index.json", "[]");
  CHECK_THROWS_WITH(make_datasets(pictures("webdataset", folder / "shards"), 1),
                    Catch::Contains("index.json") && Catch::Contains("shardlist"));
}

TEST_CASE("[S05] a pattern in braces is a list of names") {
  CHECK(expand_braces("a-{008..011}.tar") ==
        std::vector<std::string>{"a-008.tar", "a-009.tar", "a-010.tar", "a-011.tar"});
  CHECK(expand_braces("{a,b}{1..2}") == std::vector<std::string>{"a1", "a2", "b1", "b2"});
  CHECK(expand_braces("plain.tar") == std::vector<std::string>{"plain.tar"});
  for (const char* bad :
       {"{1..", "{1}", "{2..1}", "{a..b}", "{0..99999999999999999999}", "{0..5000000}", "{0..9999}{0..9999}"})
    CHECK_THROWS_WITH(expand_braces(bad), Catch::Contains("data_dir"));
}

TEST_CASE("[S05] token shards and MNIST's files are read as numpy and gzip write them") {
  testing::ScratchDirectory folder;
  if (!written(folder)) return;
  TokenOptions tokens;
  tokens.block_size = 5;
  for (const auto& [name, first] :
       std::vector<std::pair<std::string, std::int64_t>>{{"small", 0}, {"raw", 0}, {"large", 70'000}}) {
    INFO(name);
    tokens.vocab_size = name == "large" ? 100'000 : 50'257;
    tokens.paths = {folder / ("tokens/" + name + ".bin")};
    const auto data = read_tokens(tokens).first;
    REQUIRE(data->size() == 2);
    CHECK(data->get(1, {}).input.equal(at::tensor({first + 5, first + 6, first + 7, first + 8, first + 9})));
  }
  const auto large = content_of(folder / "tokens/large.bin");
  testing::write_text(folder / "tokens/large.bin", large.substr(0, large.size() - 2));
  tokens.paths = {folder / "tokens/large.bin"};
  CHECK_THROWS_WITH(read_tokens(tokens),
                    Catch::Contains("offset 1064") && Catch::Contains("not a whole number of uint32"));
  auto options = pictures("mnist", folder / "mnist");
  options.in_channels = 1;
  options.image_size = 0;
  options.num_classes = 10;
  const auto [train, held_out] = make_datasets(options, 1);
  CHECK(train->size() == 6);
  CHECK(held_out->get(1, {}).target.item<std::int64_t>() == 1);
  CHECK(train->get(0, {}).input[0][1][0].item<float>() == Approx((28.0 / 255 - 0.1307) / 0.3081));
}

TEST_CASE("[S05] bad samples stop the job, or are skipped, counted and named, and the next good one stands in") {
  testing::ScratchDirectory folder;
  if (!written(folder)) return;
  testing::write_text(folder / "classes/cat/02.jpg", "no picture");
  testing::write_text(folder / "classes/cat/03.jpg", content_of(folder / "classes/cat/03.jpg").substr(0, 400));
  auto options = pictures("image_folder", folder / "classes");
  const std::vector<std::int64_t> batch{1, 2, 5};
  const auto stops = make_datasets(options, 1).first;
  CHECK_THROWS_WITH(stops->get_batch(batch, {}),
                    Catch::Contains("cat/02.jpg") && Catch::Contains("neither JPEG nor PNG"));
  options.on_bad_sample = "skip";
  const auto skips = make_datasets(options, 1).first;
  const auto read = skips->get_batch(batch, {});
  CHECK(read.index.equal(at::tensor({1, 4, 5}, at::kLong)));  // 2 and 3 are bad
  CHECK(read.input[1].equal(stops->get(4, {}).input));
  CHECK(dynamic_cast<const SkipBadSamples&>(*skips).skipped() == 2);
  skips->get_batch(batch, {});  // again: they are told once
  const auto notices = skips->take_notices();
  REQUIRE(notices.size() == 2);
  CHECK_THAT(notices[1],
             Catch::Contains("bad sample 3 skipped (2 so far on this rank)") && Catch::Contains("cat/03.jpg"));
  CHECK(skips->take_notices().empty());
  for (int i = 0; i < 6; ++i) {
    for (const char* name : {"cat", "dog"})
      testing::write_text(folder / ("classes/" + std::string(name) + "/0" + std::to_string(i) + ".jpg"), "x");
  }
  CHECK_THROWS_WITH(skips->get_batch(batch, {}), Catch::Contains("none of 10 samples in a row can be read"));
}
