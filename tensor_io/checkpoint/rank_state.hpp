#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// One rank's state in a checkpoint, in its rank-*.json: text that explains itself, since users keep it. A value.
struct RankState {
  static constexpr std::size_t kMaxTextBytes = std::size_t{16} << 20;

  std::vector<std::uint8_t>
      rng;                 ///< state of the rank's generator (torch::CPUGeneratorImpl: 5,056 bytes); base64 in the text
  std::int64_t epoch = 0;  ///< the loader's cursor
  std::int64_t step_in_epoch = 0;
  std::map<std::string, double> counters;  ///< finite: loss scale, best metric …
  std::map<std::string, std::string> strings;

  bool operator==(const RankState&) const = default;

  /// One JSON object. Throws Error(usage) for a counter that is not finite or a text that is not valid UTF-8.
  std::string to_json() const;
  /// Throws Error(bad_data), whose operation is `where` (the file's name), for anything but what to_json writes.
  static RankState from_json(std::string_view text, const std::string& where);
};

}  // namespace troupe
