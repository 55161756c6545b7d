#pragma once
#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

namespace troupe {

/// A run folder's run.json as it lies there; empty where there is none, a link, or no regular file of at most 1 MiB.
std::string read_run_json(const std::string& folder);
/// The same, parsed: null where there is none, no object where it can't be parsed.
nlohmann::json run_facts(const std::string& folder);
/// Of another file of at most 16 MiB, or what a link leads to.
nlohmann::json read_json_file(const std::filesystem::path& path);
/// A member that is text, else empty; of anything.
std::string text_of(const nlohmann::json& object, const char* key);

}  // namespace troupe
