#include "tensor_io/data/datasets.hpp"
#include "tests/catch.hpp"
#include "tests/reading/picture_bytes.hpp"
#include "tests/reading/reading_cases.hpp"

using namespace troupe;

TEST_CASE("CIFAR-10's binary files are torchvision's pictures and labels, or are refused by file and record",
          "[reading]") {
  testing::check_reading("cifar", [](const std::string& folder, const testing::ReadingCase&) {
    DataOptions options;
    options.data_dir = folder;
    options.in_channels = 3;
    options.image_size = 0;
    const auto [train, test] = read_cifar10(options);
    NamedTensors read;
    testing::add_pictures("train", *train, {0.4914f, 0.4822f, 0.4465f}, {0.2470f, 0.2435f, 0.2616f}, read);
    testing::add_pictures("test", *test, {0.4914f, 0.4822f, 0.4465f}, {0.2470f, 0.2435f, 0.2616f}, read);
    return read;
  });
}
