// Beside Hugging Face's way to read a folder.
#include "tensor_io/checkpoint/safetensors_folder.hpp"
#include "tensor_io/checkpoint/safetensors_index.hpp"
#include "tests/catch.hpp"
#include "tests/reading/reading_cases.hpp"

using namespace troupe;

TEST_CASE("[R10] each Hugging Face folder holds what transformers reads in it, or is refused by the file's name",
          "[reading]") {
  testing::check_reading("hf", [](const std::string& folder, const testing::ReadingCase& one) {
    const auto path = folder + "/" + one.settings.value("folder", ".");
    if (!holds_safetensors(path)) refuse_foreign_checkpoint(path);
    return read_safetensors_folder(path);
  });
}
