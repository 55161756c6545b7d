#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::simulator {

/// What the programs of `./dev simulate` are told.
struct Arguments {
  std::uint64_t seeds = 0, first = 1;
  std::optional<std::vector<std::size_t>> faults;  ///< of the seed's, by number; nothing: all
  std::string plant;                               ///< a bug
  std::vector<int> ranks;                          ///< measure what changes of membership cost
  bool log = false;
};

/// Ends the process with exit code 2 and a line that says why.
[[noreturn]] void refuse(const std::string& why);

Arguments parse_arguments(int argc, const char* const* argv, std::uint64_t default_seeds);

/// Those of the seed's faults that were asked for.
template <class Fault>
std::vector<Fault> chosen(const Arguments& arguments, std::uint64_t seed, std::vector<Fault> faults) {
  if (!arguments.faults) return faults;
  std::vector<Fault> kept;
  for (const auto index : *arguments.faults) {
    if (index >= faults.size()) refuse("seed " + std::to_string(seed) + " has no fault " + std::to_string(index));
    kept.push_back(faults[index]);
  }
  return kept;
}

}  // namespace troupe::simulator
