#pragma once
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

namespace troupe {

/// The metadata of a checkpoint, or of the first one with a readable manifest in a folder of them, in the order in
/// which they are tried. Null: there is none. Throws Error(io).
nlohmann::json checkpoint_facts(const std::string& path);
/// The run that a checkpoint is of. Nothing: an older checkpoint, which names none.
std::optional<std::string> run_id_of(const nlohmann::json& metadata);

/// Whether `directory` is a folder of checkpoints, and `path` is it, or a checkpoint in it.
bool is_in(const std::string& path, const std::string& directory);

}  // namespace troupe
