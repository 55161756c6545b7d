#include "launch/process/our_variables.hpp"

#include <algorithm>
#include <iterator>

namespace troupe {

const std::vector<std::string>& job_variables() {
  static const std::vector<std::string> names{
      "TROUPE_ADDRESS",   "TROUPE_COORDINATOR", "TROUPE_FAULT", "TROUPE_INCARNATION", "TROUPE_INSECURE_NETWORK",
      "TROUPE_INSPECT",   "TROUPE_JOB_ID",      "TROUPE_KEYS",  "TROUPE_NODE",        "TROUPE_PROGRESS",
      "TROUPE_RECOVERY",  "TROUPE_RESTARTS",    "TROUPE_RUN",   "TROUPE_SLOT",        "TROUPE_SPARE",
      "TROUPE_START_OVER"};
  return names;
}

bool is_our_variable(std::string_view variable) {
  constexpr std::string_view kOthers[] = {"TROUPE_CHECKPOINT", "TROUPE_COMMAND", "TROUPE_INSECURE_MLFLOW",
                                          "TROUPE_KERNELS",    "TROUPE_PYTHON",  "TROUPE_STEP"};
  const auto& names = job_variables();
  return std::find(names.begin(), names.end(), variable) != names.end() ||
         std::find(std::begin(kOthers), std::end(kOthers), variable) != std::end(kOthers);
}

}  // namespace troupe
