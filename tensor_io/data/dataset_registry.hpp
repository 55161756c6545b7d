#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tensor_io/base/registry.hpp"
#include "tensor_io/data/data_options.hpp"

namespace troupe {

class Dataset;

/// The data to train on, and the data to measure on; the second may be empty: no validation.
using TrainAndHeldOut = std::pair<std::shared_ptr<const Dataset>, std::shared_ptr<const Dataset>>;

/// Makes a data set that the setting `data` names. Called once by each rank, on its thread; several simulated ranks
/// call it at the same time. `seed` is the run's: the factory derives its random numbers from it, so that all ranks
/// have the same data. Throws Error(usage) for a setting that makes no sense, Error(unavailable) or (bad_data) for
/// files.
using DatasetFactory = std::function<TrainAndHeldOut(const DataOptions& options, std::uint64_t seed)>;

/// Adds a data set for `--data NAME`; the config allows the name from then on, and --help shows `description` (one
/// line). Before troupe::run or troupe::main, in every process of the job. A name that is registered already is
/// replaced. Any thread. Throws Error(usage) for an empty factory.
void register_dataset(const std::string& name, const std::string& description, DatasetFactory factory);

/// The shipped ones, then the registered ones, each in the order of registration. Any thread.
std::vector<RegisteredName> known_datasets();

/// The data set that the options name: the data to train on, and the data to measure on. Errors name file and offset;
/// an unknown name is Error(usage) with all known ones. The setting `on_bad_sample` holds for all of them.
TrainAndHeldOut make_datasets(const DataOptions& options, std::uint64_t seed);

namespace detail {
/// Nothing: the name is unknown. An empty factory: it ships, and datasets.cpp makes it.
std::optional<DatasetFactory> find_dataset(const std::string& name);
}  // namespace detail

}  // namespace troupe
