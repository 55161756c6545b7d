#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace troupe {

/// In a checkpoint's metadata: the best validation so far whose checkpoint is on disk, or is this one.
inline constexpr const char *kBest = "best", *kBestLoss = "best_loss", *kBestStep = "best_step";

/// The step that `best` must name, in `directory`, beside a checkpoint with this metadata.
struct BestName {
  bool is_known = false;             ///< false: an older checkpoint, or the named one cannot be read
  std::optional<std::int64_t> step;  ///< nothing: the folder has no checkpoint of that validation
};

/// The metadata of `step` decides. The checkpoint that it names must record the same validation: one of the same step
/// may be of another branch of the run.
BestName best_beside(const std::string& directory, std::int64_t step,
                     const std::map<std::string, std::string>& metadata);

}  // namespace troupe
