// Beside the safetensors package.
#include <ATen/Functions.h>

#include "tensor_io/checkpoint/safetensors.hpp"
#include "tests/catch.hpp"
#include "tests/reading/reading_cases.hpp"

using namespace troupe;

TEST_CASE("[D12] each safetensors file holds what the safetensors package reads in it, or is refused", "[reading]") {
  testing::check_reading("safetensors", [](const std::string& folder, const testing::ReadingCase&) {
    auto tensors = load_safetensors(folder + "/x.safetensors");
    const auto count = static_cast<std::int64_t>(tensors.size());
    tensors.emplace_back("@tensors", at::scalar_tensor(count, at::kLong));
    return tensors;
  });
}
