#include "tensor_io/data/datasets.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <fstream>

#include "tensor_io/base/error.hpp"
#include "tensor_io/data/image_dataset.hpp"
#include "tensor_io/data/text_table.hpp"
#include "tests/catch.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;

namespace {
std::string write(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
  return path;
}
std::string idx(std::vector<std::uint32_t> shape, std::size_t bytes) {
  std::string text{0, 0, 8, static_cast<char>(shape.size())};
  for (const auto n : shape) {
    for (int shift = 24; shift >= 0; shift -= 8) text.push_back(static_cast<char>(n >> shift & 0xff));
  }
  for (std::size_t i = 0; i < bytes; ++i) text.push_back(static_cast<char>(i % 10));
  return text;
}
DataOptions data(const std::string& name, const std::string& dir = {}) {
  DataOptions options;
  options.data = name;
  options.data_dir = dir;
  options.image_size = 0;
  return options;
}
}  // namespace

TEST_CASE("[S05] the shipped digits are 1,438 images to train on and 359 held out") {
  auto options = data("digits");
  options.in_channels = 1;
  const auto [train, held_out] = make_datasets(options, 1);
  CHECK(train->size() == 1438);
  CHECK(held_out->size() == 359);
  const auto first = train->get(0, {});
  CHECK(first.input.sizes() == at::IntArrayRef({1, 8, 8}));
  CHECK(first.target.item<std::int64_t>() == 0);
  CHECK(first.input[0][0][2].item<float>() == Approx((5.0 / 16 - 0.3053) / 0.3760));  // the file's first line: 0,0,5,…
  CHECK(held_out->get(0, {}).target.item<std::int64_t>() == 4);
  options.image_size = 32;
  options.in_channels = 3;
  CHECK(make_datasets(options, 1).first->get(3, {}).input.sizes() == at::IntArrayRef({3, 32, 32}));
}

TEST_CASE("[S05] MNIST's IDX files are read, plain, and a torn or foreign one is refused with file, offset and field") {
  testing::ScratchDirectory folder;
  write(folder / "train-images-idx3-ubyte", idx({12, 28, 28}, 12 * 28 * 28));
  write(folder / "train-labels-idx1-ubyte", idx({12}, 12));
  write(folder / "t10k-images-idx3-ubyte", idx({3, 28, 28}, 3 * 28 * 28));
  write(folder / "t10k-labels-idx1-ubyte", idx({3}, 3));
  auto options = data("mnist", folder.path());
  options.in_channels = 1;
  options.num_classes = 10;
  const auto [train, held_out] = make_datasets(options, 1);
  CHECK(train->size() == 12);
  CHECK(held_out->size() == 3);
  CHECK(train->get(1, {}).target.item<std::int64_t>() == 1);
  options.num_classes = 5;
  CHECK_THROWS_WITH(make_datasets(options, 1), Catch::Contains("label 5") && Catch::Contains("num_classes"));
  options.num_classes = 10;

  const auto path = write(folder / "train-labels-idx1-ubyte", idx({12}, 11));
  CHECK_THROWS_WITH(read_idx(path), Catch::Contains(path) && Catch::Contains("offset 8") &&
                                        Catch::Contains("promises 12 bytes, there are 11"));
  CHECK_THROWS_WITH(read_idx(write(folder / "x", "PNG.....")), Catch::Contains("magic"));
  CHECK_THROWS_WITH(read_idx(write(folder / "x", "ab")), Catch::Contains("not an IDX header"));
  CHECK_THROWS_WITH(read_idx(write(folder / "x", idx({0xffffffff, 0xffffffff, 0xffffffff}, 4))),
                    Catch::Contains("terabyte"));
  CHECK_THROWS_WITH(read_idx(folder / "nowhere"), Catch::Contains("nowhere"));
  write(folder / "train-labels-idx1-ubyte", idx({11}, 11));
  CHECK_THROWS_WITH(make_datasets(options, 1), Catch::Contains("11 labels for 12 images"));
}

TEST_CASE("[S05] CIFAR-10's binary batches are read, and a cut record is refused with its offset") {
  testing::ScratchDirectory folder;
  std::string record(3073, '\x20');
  record[0] = 7;
  for (int i = 1; i <= 5; ++i) write(folder / ("data_batch_" + std::to_string(i) + ".bin"), record + record);
  write(folder / "test_batch.bin", record);
  const auto [train, held_out] = make_datasets(data("cifar10", folder.path()), 1);
  CHECK(train->size() == 10);
  CHECK(held_out->size() == 1);
  CHECK(train->get(9, {}).target.item<std::int64_t>() == 7);
  write(folder / "data_batch_3.bin", record + "torn");
  CHECK_THROWS_WITH(make_datasets(data("cifar10", folder.path()), 1),
                    Catch::Contains("data_batch_3.bin") && Catch::Contains("record 1 is cut off"));
}

TEST_CASE("[S05] a CSV file is read with or without a header, and a bad number is named with line and column") {
  testing::ScratchDirectory folder;
  auto options = data("csv", write(folder / "a.csv", "x,y,label\n1,2,0\n3,4,1\r\n5,6,0\n7,8,1\n9,10,1\n"));
  options.num_classes = 2;
  const auto [train, held_out] = make_datasets(options, 1);
  CHECK(train->size() == 4);
  CHECK(held_out->size() == 1);
  CHECK(held_out->get(0, {}).input.equal(at::tensor({9.0f, 10.0f})));
  CHECK_THROWS_WITH(parse_csv("a.csv", "1,2\n3,x\n"), Catch::Contains("a.csv:2") && Catch::Contains("column 2: 'x'"));
  CHECK_THROWS_WITH(parse_csv("a.csv", "1,2\n3\n"), Catch::Contains("1 columns"));
  CHECK_THROWS_WITH(parse_csv("a.csv", "1,2\n2,3\n4,inf\n"), Catch::Contains("a.csv:3"));
  CHECK_THROWS_WITH(parse_csv("a.csv", ""), Catch::Contains("no rows"));
  options.data_dir = write(folder / "b.csv", "1,2,0\n1,2,2\n1,2,0\n1,2,0\n1,2,0\n");
  CHECK_THROWS_WITH(make_datasets(options, 1), Catch::Contains("b.csv:2") &&
                                                   Catch::Contains("column 3: 2 is not a label") &&
                                                   Catch::Contains("num_classes 2"));
  options.data_dir.clear();
  CHECK_THROWS_WITH(make_datasets(options, 1), Catch::Contains("data_dir"));
}

TEST_CASE("[D1] no label and no pixel is rounded to a class or a grey: the line is named") {
  testing::ScratchDirectory folder;
  auto options = data("csv", folder / "a.csv");
  options.num_classes = 3;
  for (const char* label : {"0.5", "-1", "3", "1e9"}) {
    write(options.data_dir, std::string("# made by hand\nx,label\n1,0\n\n1,") + label + "\n1,2\n");
    CHECK_THROWS_WITH(make_datasets(options, 1),
                      Catch::Contains("a.csv:5: column 2 ('label')") && Catch::Contains("is not a label from 0 to 2"));
  }
  const auto digits = [&](const std::string& pixel, const std::string& label) {
    std::string row;
    for (int i = 0; i < 63; ++i) row += "1,";
    write(options.data_dir, row + "1,0\n" + row + pixel + "," + label + "\n");
    options.data = "digits";
    return make_datasets(options, 1);
  };
  CHECK_NOTHROW(digits("16", "2"));
  for (const char* pixel : {"3.5", "-1", "17"})
    CHECK_THROWS_WITH(digits(pixel, "2"), Catch::Contains("a.csv:2: column 64") && Catch::Contains("is not a pixel"));
  for (const char* label : {"0.5", "3"})
    CHECK_THROWS_WITH(digits("3", label), Catch::Contains("a.csv:2: column 65") && Catch::Contains("is not a label"));
}

TEST_CASE("[D3] whatever lies behind the last member of a gzip file is read, zeros, or refused") {
  testing::ScratchDirectory folder;
  const auto digits = read_file(TROUPE_SOURCE_DIR "/data/digits.csv.gz");
  std::ifstream file(TROUPE_SOURCE_DIR "/data/digits.csv.gz", std::ios::binary);
  const std::string packed{std::istreambuf_iterator<char>(file), {}};
  CHECK(read_file(write(folder / "twice", packed + packed)) == digits + digits);
  CHECK(read_file(write(folder / "padded", packed + std::string(100, '\0'))) == digits);
  for (const std::string& rest : {std::string("5,6,2\n"), std::string("\0\0x", 3), std::string("\x1f")})
    CHECK_THROWS_WITH(read_file(write(folder / "mixed", packed + rest)),
                      Catch::Contains("mixed") &&
                          Catch::Contains("offset " + std::to_string(packed.size() + rest.find_first_not_of('\0'))));
  for (std::size_t cut = 1; cut < 20; ++cut)
    CHECK_THROWS_WITH(read_file(write(folder / "cut", packed + packed.substr(0, packed.size() - cut))),
                      Catch::Contains("the compressed file ends early"));
}

TEST_CASE("[S05] synthetic images are 50,000 by default and a function of seed and index") {
  const auto [train, held_out] = make_datasets(data("synthetic"), 1);
  CHECK(train->size() == 50'000);
  CHECK(train->get(123, {}).input.equal(make_datasets(data("synthetic"), 1).first->get(123, {}).input));
  CHECK_FALSE(train->get(123, {}).input.equal(make_datasets(data("synthetic"), 2).first->get(123, {}).input));
  CHECK(train->get(0, {}).input.sizes() == at::IntArrayRef({3, 32, 32}));
}

TEST_CASE("[S06] augmentation is a function of seed, epoch and sample alone") {
  const auto images = at::arange(2 * 3 * 8 * 8).remainder(256).to(at::kByte).view({2, 3, 8, 8});
  ImageTransform transform;
  transform.augment = true;
  const ImageDataset dataset("test", images, at::zeros({2}, at::kLong), 1, transform);
  const std::vector<std::int64_t> both{0, 1}, second{1};
  const auto batch = dataset.get_batch(both, {7, 3});
  CHECK(dataset.get_batch(second, {7, 3}).input[0].equal(batch.input[1]));  // wherever it stands in a batch
  bool epochs_differ = false, seeds_differ = false;
  for (std::int64_t e = 0; e < 8; ++e) {
    epochs_differ = epochs_differ || !dataset.get_batch(both, {7, e}).input.equal(batch.input);
    seeds_differ =
        seeds_differ || !dataset.get_batch(both, {static_cast<std::uint64_t>(e), 3}).input.equal(batch.input);
  }
  CHECK(epochs_differ);
  CHECK(seeds_differ);
  transform.augment = false;
  const ImageDataset plain("test", images, at::zeros({2}, at::kLong), 1, transform);
  CHECK(plain.get_batch(both, {}).input.allclose(images.to(at::kFloat) / 255));
  const std::vector<std::int64_t> outside{2};
  CHECK_THROWS_WITH(plain.get_batch(outside, {}), Catch::Contains("outside its 2"));
}
