#include "tensor_io/data/dataset_registry.hpp"

#include "tensor_io/base/error.hpp"

// Without LibTorch: the `troupe` command lists the names. So those that ship are here by name alone.
namespace troupe {
namespace {

Registry<DatasetFactory>& dataset_registry() {
  static Registry<DatasetFactory> registry{
#define TROUPE_DATASET(name, description, make) {{name, description}, nullptr},
#include "tensor_io/data/shipped_datasets.inc"
#undef TROUPE_DATASET
  };
  return registry;
}

}  // namespace

void register_dataset(const std::string& name, const std::string& description, DatasetFactory factory) {
  if (!factory) throw Error(ErrorCode::usage, "register_dataset", "data set '" + name + "' has no factory");
  dataset_registry().add(name, description, std::move(factory));
}

std::vector<RegisteredName> known_datasets() { return dataset_registry().names(); }

std::optional<DatasetFactory> detail::find_dataset(const std::string& name) { return dataset_registry().find(name); }

}  // namespace troupe
