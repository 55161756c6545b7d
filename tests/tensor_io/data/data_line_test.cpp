#include "tensor_io/data/data_line.hpp"

#include "tensor_io/data/bad_samples.hpp"
#include "tests/catch.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;

namespace {
std::string line_of(const DataOptions& options) {
  const auto [train, held_out] = make_datasets(options, 1);
  return data_line(*train, held_out.get());
}
}  // namespace

TEST_CASE("[D1] a run's first lines say what the data was read as and how it was split") {
  DataOptions options;
  options.data = "digits";
  options.in_channels = 1;
  options.on_bad_sample = GENERATE("stop", "skip");
  CHECK(
      line_of(options) ==
      "data: digits.csv.gz, 1,797 rows of 64 pixels and a label, no header; 1,438 to train, 359 held out (every 5th)");
  testing::ScratchDirectory folder;
  options.data = "csv";
  options.data_dir = folder / "a.csv";
  testing::write_text(options.data_dir, "x,y,label\n1,2,0\n3,4,1\n5,6,0\n7,8,1\n9,10,1\n");
  CHECK(line_of(options) ==
        "data: a.csv, 5 rows of 2 numbers and a label, a header; 4 to train, 1 held out (every 5th)");
  options = {};
  CHECK(line_of(options) == "data: synthetic, pictures made on the fly; 50,000 to train, 5,000 held out");
  CHECK(data_line(SyntheticImages(options, 1, 0, 7), nullptr) == "data: synthetic; 7 to train, none held out");
}

TEST_CASE("[D1] numbers have a comma before each third digit from the right") {
  CHECK(with_commas(0) == "0");
  CHECK(with_commas(999) == "999");
  CHECK(with_commas(1000) == "1,000");
  CHECK(with_commas(-1234567) == "-1,234,567");
  CHECK(with_commas(-123) == "-123");
}
