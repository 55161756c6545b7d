// Beside torch.load.
#include "tensor_io/checkpoint/plain_archive.hpp"
#include "tests/catch.hpp"
#include "tests/reading/reading_cases.hpp"

using namespace troupe;

TEST_CASE("[D13] each file of torch.save holds what torch.load reads in it, or is refused", "[reading]") {
  testing::check_reading("pt", [](const std::string& folder, const testing::ReadingCase&) {
    return load_plain_archive(folder + "/x.pt");
  });
}
