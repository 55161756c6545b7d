#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct Config;

/// A checkpoint has the number of steps of an epoch that are done; these settings decide which samples those were.
/// Returns their differences, for the user: "seed was 42, is 9". `saved`: the settings in the checkpoint's metadata,
/// JSON; missing ones are not compared. Pure.
std::vector<std::string> data_order_changes(std::string_view saved, const Config& config);

/// The remedy if the model of a checkpoint is not the program's: the settings of the program and of its data that
/// differed, `n_embd was 32, is 64: ...`, or none of them. Pure.
std::string remedy_for_model(std::string_view saved, const Config& config);

/// Steps of an epoch that were done with the saved batch size become steps with the config's, so that the epoch goes on
/// at the same sample. Returns the number of samples that come again, so that batches are whole; 0 if the saved batch
/// size is not known. Pure.
std::int64_t same_sample(std::string_view saved, const Config& config, std::int64_t& step_in_epoch);

}  // namespace troupe
