#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// The texts that travel with tensors: a checkpoint's metadata, a strategy's state and Compute::notes. They come from a
/// file or another rank, and a hash does not show whether their content makes sense. One table has the form of each
/// known text.
using StateTexts = std::map<std::string, std::string>;

inline constexpr std::int64_t kMostSteps = std::int64_t{1} << 40;  ///< of a run
/// A loss scaler's counters, in a rank's state.
inline constexpr const char* kLossScale = "loss_scale";
inline constexpr const char* kLossScaleTracker = "loss_scale_growth_tracker";
/// Of Compute::notes: the signal by which the ranks have agreed to stop.
inline constexpr const char* kStopSignal = "stop_signal";

/// Throws Error(bad_data) for a known text that does not have the form of its name. The operation is `where`, and the
/// cause begins with `in` and the text's name. Unknown texts are left alone. Any thread.
void check_state_texts(const StateTexts& texts, const std::string& where, const std::string& in);
/// The same for the counters of a rank's state.
void check_state_counters(const std::map<std::string, double>& counters, const std::string& where,
                          const std::string& in);

/// A known text's value; nothing if it is not there. Throw as check_state_texts does.
std::optional<std::int64_t> whole_in(const StateTexts& texts, const std::string& name);
std::optional<std::uint64_t> hash_in(const StateTexts& texts, const std::string& name);
std::optional<double> real_in(const StateTexts& texts, const std::string& name);
std::optional<std::vector<std::int64_t>> wholes_in(const StateTexts& texts, const std::string& name);

/// A whole number and nothing else, from `least` to `most`.
std::optional<std::int64_t> whole_number(std::string_view text, std::int64_t least, std::int64_t most);

}  // namespace troupe
