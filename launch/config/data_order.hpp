#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct Config;

/// A checkpoint says how many steps of an epoch are done; which samples those were follows from these settings. What
/// differs of them, for a person: "batch_size was 64, is 32". `saved`: the settings in the checkpoint's metadata, JSON;
/// what it does not hold is not compared. Pure.
std::vector<std::string> data_order_changes(std::string_view saved, const Config& config);

}  // namespace troupe
