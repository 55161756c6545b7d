#include "tensor_io/checkpoint/best_checkpoint.hpp"

#include <filesystem>

#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"
#include "tensor_io/checkpoint/manifest.hpp"
#include "tensor_io/files/bounded_file.hpp"
#include "tensor_io/layout/state_texts.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

std::string fact_of(const std::map<std::string, std::string>& metadata, const char* key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? std::string() : found->second;
}

}  // namespace

BestName best_beside(const std::string& directory, std::int64_t step,
                     const std::map<std::string, std::string>& metadata) {
  const auto best = whole_in(metadata, kBestStep);
  if (!best) return {};
  if (*best < 0) return {real_in(metadata, kBest).value_or(-1) < 0, std::nullopt};
  if (*best == step) return {true, best};
  const auto manifest_path = fs::path(directory) / step_folder_name(*best) / kManifestFile;
  std::error_code failure;
  if (!fs::exists(manifest_path, failure)) return {!failure, std::nullopt};
  try {
    const BoundedFile file("reading the best checkpoint", manifest_path.string());
    const auto named = Manifest::from_text(file.read_all(Manifest::kMaxBytes), file.operation()).metadata;
    for (const auto* key : {kBest, kBestLoss, kBestStep})
      if (fact_of(named, key) != fact_of(metadata, key)) return {true, std::nullopt};
  } catch (const Error&) {
    return {};
  }
  return {true, best};
}

}  // namespace troupe
