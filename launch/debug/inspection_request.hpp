#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "launch/config/config.hpp"

namespace troupe {

/// The request of `troupe debug` to a program that it starts, in the variable TROUPE_INSPECT. Torch-free.
struct InspectionRequest {
  std::string folder;       ///< each rank writes rankN.json there; it exists
  int ranks = 1;            ///< of the run
  std::int64_t steps = 20;  ///< after this number of them the run ends ...
  double seconds = 6;       ///< ... or after this time, if that is earlier
  bool gradients = false;   ///< one step alone, without dropout; its gradients are recorded
  std::uint64_t draw = 0;   ///< not 0: forwards draw other random numbers than without it

  std::string to_text() const;  ///< the variable's value
};

inline constexpr const char* kInspectVariable = "TROUPE_INSPECT";

/// Empty: the variable is not set. Throws Error(usage).
std::optional<InspectionRequest> inspection_request();

/// Sets in `config` what keeps an inspected run harmless: no folders, no checkpoints, no pages, no simulated ranks, one
/// rank in one process. Returns values of the program or the user that this replaced and that are of interest, by name.
std::map<std::string, std::string> make_harmless(Config& config, const InspectionRequest& request);

}  // namespace troupe
