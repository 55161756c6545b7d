#include <algorithm>
#include <span>

#include "tensor_io/data/image_decode.hpp"
#include "tensor_io/data/image_folder.hpp"
#include "tests/catch.hpp"
#include "tests/reading/reading_cases.hpp"

using namespace troupe;

TEST_CASE("[D9] PNG and JPEG files of every kind are read to Pillow's pixels, or refused by name", "[reading]") {
  testing::check_reading("images", [](const std::string& folder, const testing::ReadingCase& one) {
    const auto path = folder + "/picture";
    const auto content = read_image_file(path);
    const auto bytes = std::as_bytes(std::span(content));
    NamedTensors read{{"rgb", decode_image(bytes, path, 3)}};
    const bool grey =
        std::any_of(one.values.begin(), one.values.end(), [](const auto& each) { return each.first == "grey"; });
    if (grey) read.emplace_back("grey", decode_image(bytes, path, 1));
    return read;
  });
}
