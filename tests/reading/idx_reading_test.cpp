#include "tensor_io/data/datasets.hpp"
#include "tests/catch.hpp"
#include "tests/reading/picture_bytes.hpp"
#include "tests/reading/reading_cases.hpp"

using namespace troupe;

TEST_CASE("MNIST's IDX files are torchvision's pictures and labels, or are refused by file and field", "[reading]") {
  testing::check_reading("idx", [](const std::string& folder, const testing::ReadingCase&) {
    DataOptions options;
    options.data_dir = folder;
    options.in_channels = 1;
    options.image_size = 0;
    const auto [train, test] = read_mnist(options);
    NamedTensors read;
    testing::add_pictures("train", *train, {0.1307f}, {0.3081f}, read);
    testing::add_pictures("test", *test, {0.1307f}, {0.3081f}, read);
    return read;
  });
}
