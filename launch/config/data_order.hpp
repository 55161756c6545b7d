#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct Config;

/// A checkpoint says how many steps of an epoch are done; which samples those were follows from these settings. What
/// differs of them, for a person: "seed was 42, is 9". `saved`: the settings in the checkpoint's metadata, JSON;
/// what it does not hold is not compared. Pure.
std::vector<std::string> data_order_changes(std::string_view saved, const Config& config);

/// What to do if the model of a checkpoint is not the program's: the settings of the program and of its data that were
/// others, `n_embd was 32, is 64: ...`, or none of them. Pure.
std::string remedy_for_model(std::string_view saved, const Config& config);

/// Steps of an epoch that were done with the saved batch size become steps with the config's, so that the epoch goes on
/// at the same sample. Returns how many samples come again, so that batches are whole; 0 where nothing says what the
/// batch size was. Pure.
std::int64_t same_sample(std::string_view saved, const Config& config, std::int64_t& step_in_epoch);

}  // namespace troupe
