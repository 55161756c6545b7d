// Beside torch.distributed.checkpoint.
#include "tensor_io/checkpoint/safetensors_folder.hpp"
#include "tensor_io/checkpoint/safetensors_index.hpp"
#include "tests/catch.hpp"
#include "tests/reading/reading_cases.hpp"

using namespace troupe;

TEST_CASE(
    "[R10] each folder of torch.distributed.checkpoint holds what its reader reads, or is refused by a file's name",
    "[reading]") {
  testing::check_reading("dcp", [](const std::string& folder, const testing::ReadingCase&) {
    if (!holds_safetensors(folder)) refuse_foreign_checkpoint(folder);
    return read_safetensors_folder(folder);
  });
}
