#include "tensor_io/data/dataset_registry.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include "tensor_io/base/error.hpp"
#include "tensor_io/data/datasets.hpp"
#include "tests/catch.hpp"

using namespace troupe;

namespace {

TrainAndHeldOut rows(const DataOptions& options, std::uint64_t seed) {
  const auto make = [&](std::int64_t size) {
    return std::make_shared<TensorDataset>(at::arange(static_cast<std::int64_t>(seed), seed + size),
                                           at::zeros({size}, at::kLong), "rows of " + options.data_dir);
  };
  return {make(8), make(2)};
}

}  // namespace

TEST_CASE("[S05] a data set that a program registers is made by its name") {
  register_dataset("rows", "for a test", rows);
  DataOptions options;
  options.data = "rows";
  options.data_dir = "somewhere";
  const auto [train, held_out] = make_datasets(options, 40);
  CHECK(train->size() == 8);
  CHECK(held_out->size() == 2);
  CHECK(train->name() == "rows of somewhere");
  CHECK(train->get(3, {}).input.item<std::int64_t>() == 43);
  CHECK_THROWS_WITH(register_dataset("none", "", nullptr), Catch::Contains("'none' has no factory"));
}

TEST_CASE("[S05] an unknown data set is refused in one line with all known ones") {
  register_dataset("rows", "for a test", rows);
  DataOptions options;
  options.data = "digit";
  std::string refusal = "made";
  try {
    make_datasets(options, 1);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::usage);
    refusal = error.what();
  }
  CHECK_THAT(refusal, Catch::Contains("there is no data set 'digit'; known: synthetic, digits, mnist, cifar10, csv, "
                                      "image_folder, webdataset, packed, tokens") &&
                          Catch::Contains("rows"));
  CHECK(refusal.find('\n') == std::string::npos);
}

TEST_CASE("[S05] each data set that ships has a description and a maker") {
  const auto known = known_datasets();
  REQUIRE(known.size() >= 8);
  for (const auto& [name, description] : known) {
    INFO(name);
    CHECK_FALSE(description.empty());
    DataOptions options;
    options.data = name;
    options.synthetic_size = 10;
    if (name == "synthetic" || name == "digits" || name == "rows") continue;
    CHECK_THROWS_WITH(make_datasets(options, 1), Catch::Contains("data set " + name + " is read from your files"));
  }
}
