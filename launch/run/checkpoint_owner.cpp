#include "launch/run/checkpoint_owner.hpp"

#include <filesystem>

#include "launch/run/run_file.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"

namespace troupe {
namespace {

nlohmann::json metadata_in(const std::string& checkpoint) {
  const auto manifest = read_json_file(std::filesystem::path(checkpoint) / kManifestFile);
  return manifest.is_object() ? manifest.value("metadata", nlohmann::json()) : nlohmann::json();
}

}  // namespace

nlohmann::json checkpoint_facts(const std::string& path) {
  auto metadata = metadata_in(path);
  if (!metadata.is_null()) return metadata;
  for (const auto& checkpoint : newest_first(list_checkpoints(path), latest_step(path))) {
    metadata = metadata_in(checkpoint.path);
    if (!metadata.is_null()) return metadata;
  }
  return {};
}

std::optional<std::string> run_id_of(const nlohmann::json& metadata) {
  auto id = text_of(metadata, "run");
  if (id.empty()) id = text_of(metadata, "job");  // of an older version
  return id.empty() ? std::nullopt : std::optional(id);
}

bool is_in(const std::string& path, const std::string& directory) {
  namespace fs = std::filesystem;
  std::error_code failure;
  auto folder = fs::canonical(path, failure);
  if (failure) return false;
  if (fs::exists(folder / kManifestFile, failure)) folder = folder.parent_path();
  return fs::equivalent(folder, directory, failure) && !failure;
}

}  // namespace troupe
