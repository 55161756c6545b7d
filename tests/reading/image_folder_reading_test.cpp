#include "tensor_io/data/image_folder.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include "tests/catch.hpp"
#include "tests/reading/reading_cases.hpp"

using namespace troupe;

namespace {

void add_part(const std::string& part, const std::string& folder, const Dataset* data, NamedTensors& read) {
  if (data == nullptr) return;
  std::string names;
  std::vector<std::int64_t> labels;
  for (const auto& file : dynamic_cast<const ImageFolder&>(*data).files()) {
    names += (names.empty() ? "" : "\n") + file.path.substr(folder.size() + 1);
    labels.push_back(file.label);
  }
  auto bytes = at::empty({static_cast<std::int64_t>(names.size())}, at::kByte);
  names.copy(static_cast<char*>(bytes.data_ptr()), names.size());
  read.emplace_back(part, bytes);
  read.emplace_back(part + "_labels", at::tensor(labels, at::kLong));
}

}  // namespace

TEST_CASE("[D6] [D9] [D10] folders of pictures are torchvision's ImageFolder, or refused by name", "[reading]") {
  testing::check_reading("image_folder", [](const std::string& folder, const testing::ReadingCase&) {
    DataOptions options;
    options.data_dir = folder;
    const auto [train, held_out] = read_image_folder(options);
    NamedTensors read;
    add_part("train", folder, train.get(), read);
    add_part("held_out", folder, held_out.get(), read);
    return read;
  });
}
