#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "launch/config/config.hpp"

namespace troupe {

/// What `troupe debug` asks of a program that it starts, by the variable TROUPE_INSPECT. Torch-free.
struct InspectionRequest {
  std::string folder;       ///< where each rank writes rankN.json; it is there
  int ranks = 1;            ///< of the run
  std::int64_t steps = 20;  ///< after this number of them the run ends ...
  double seconds = 6;       ///< ... or after this time, whichever comes first
  bool gradients = false;   ///< one step alone, without dropout; its gradients are written down
  std::uint64_t draw = 0;   ///< not 0: forwards draw other random numbers than without it

  std::string to_text() const;  ///< the variable's value
};

inline constexpr const char* kInspectVariable = "TROUPE_INSPECT";

/// Empty: the variable is not set. Throws Error(usage).
std::optional<InspectionRequest> inspection_request();

/// Sets what an inspected run must not do to `config`: no folders, no checkpoints, no pages, no simulated ranks, one
/// rank in one process. What the program or the user had set there and is of interest comes back, by name.
std::map<std::string, std::string> make_harmless(Config& config, const InspectionRequest& request);

}  // namespace troupe
