#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

namespace troupe {

/// A run folder's run.json as it is; empty if there is none, a link, or no regular file of at most 1 MiB.
std::string read_run_json(const std::string& folder);
/// The same, parsed: null if there is none, no object if it can't be parsed.
nlohmann::json run_facts(const std::string& folder);
/// The exit code that RunLock::note_exit has left in a run folder's `lock`; nothing: that job has not ended, was
/// killed, or `lock` is no such file.
std::optional<int> noted_exit(const std::string& folder);
/// Of a checkpoint's manifest, or the target of a link: of at most Manifest::kMaxBytes.
nlohmann::json read_json_file(const std::filesystem::path& path);
/// A member that is text, else empty; `object` may be any value.
std::string text_of(const nlohmann::json& object, const char* key);

}  // namespace troupe
