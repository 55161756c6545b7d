#include "tensor_io/checkpoint/checkpoint_reader.hpp"

#include <filesystem>
#include <optional>
#include <utility>

#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"
#include "tensor_io/checkpoint/stored_checkpoint.hpp"
#include "tensor_io/files/bounded_file.hpp"

namespace troupe {

namespace fs = std::filesystem;

namespace {

constexpr const char* kStartAnew = "leave --resume out to start anew";

// What is tried next may be good; anything else (no memory, say) would fail again.
bool means_damage(const Error& error) { return error.code() == ErrorCode::bad_data || error.code() == ErrorCode::io; }

CheckpointChoice choose_latest(const std::string& directory) {
  CheckpointChoice choice{{}, {}, directory};
  const auto pointer_path = (fs::path(directory) / "latest").string();
  std::optional<std::int64_t> latest;
  const auto listed = list_checkpoints(directory);
  if (listed.empty())
    throw Error(ErrorCode::unavailable, "resuming from " + directory, "there is no checkpoint", kStartAnew);
  try {
    latest = read_pointer(directory, "latest");
    if (!latest) choice.refused.push_back({pointer_path, "is missing"});
  } catch (const Error& error) {
    if (!means_damage(error)) throw;
    choice.refused.push_back({pointer_path, error.what()});
  }
  const auto candidates = newest_first(listed, latest);
  if (latest && candidates.front().step != *latest)
    choice.refused.push_back({pointer_path, "names " + step_folder_name(*latest) + ", which is not there"});
  for (const auto& candidate : candidates) choice.paths.push_back(candidate.path);
  return choice;
}

CheckpointChoice choose_best(const std::string& directory) {
  const auto best = read_pointer(directory, "best");
  if (!best)
    throw Error(ErrorCode::unavailable, "loading the best checkpoint of " + directory, "there is none",
                "it is saved after a validation; the newest one is latest");
  for (const auto& candidate : list_checkpoints(directory)) {
    if (candidate.step == *best) return {{candidate.path}, {}, {}};
  }
  throw Error(ErrorCode::bad_data, "loading the best checkpoint of " + directory,
              "best names " + step_folder_name(*best) + ", which is not there");
}

[[noreturn]] void refuse_file(const std::string& path) {
  const BoundedFile file("reading the checkpoint", path);
  if (const auto what = foreign_format(file); !what.empty()) file.refuse(what, foreign_format_remedy(what));
  file.refuse("is a file; a checkpoint is a folder with a manifest.json",
              "name the folder; a new run from the weights in a file is --init_from");
}

CheckpointChoice choose_path(const std::string& directory, const std::string& selector) {
  std::error_code error;
  auto path = fs::canonical(selector, error);
  if (error) path = fs::canonical(fs::path(directory) / selector, error);
  if (error) {
    throw Error(ErrorCode::usage, "resuming from " + printable(selector),
                "there is no such checkpoint, here or in " + directory,
                "use latest, best, or the path of a step-… folder");
  }
  if (path.filename() == "latest" && !list_checkpoints(path.parent_path()).empty())
    return choose_latest(path.parent_path());
  path = path_meant(path);
  if (!fs::is_directory(path, error)) refuse_file(path.string());
  if (!is_checkpoint(path.string()) && (fs::exists(path / "latest", error) || !list_checkpoints(path.string()).empty()))
    return choose_latest(path.string());
  return {{path.string()}, {}, {}};
}

}  // namespace

bool is_checkpoint(const std::string& folder) {
  std::error_code error;
  return fs::exists(fs::path(folder) / kManifestFile, error);
}

CheckpointChoice choose_checkpoint(const std::string& directory, const std::string& selector) {
  if (selector == "latest") return choose_latest(directory);
  if (selector == "best") return choose_best(directory);
  return choose_path(directory, selector);
}

void refuse_checkpoint(CheckpointChoice& choice, const std::string& path, const Error& error) {
  if (choice.asked.empty() || !means_damage(error)) throw error;
  choice.refused.push_back({path, error.what()});
  if (path != choice.paths.back()) return;
  std::string reasons;
  for (const auto& refused : choice.refused) reasons += (reasons.empty() ? "" : " | ") + refused.reason;
  throw Error(ErrorCode::bad_data, "resuming from " + choice.asked,
              "none of its " + std::to_string(choice.paths.size()) + " checkpoints is usable: " + reasons, kStartAnew);
}

LoadResult load_checkpoint(const std::string& directory, const std::string& selector) {
  auto choice = choose_checkpoint(directory, selector);
  for (const auto& path : choice.paths) {
    try {
      auto state = CheckpointFolder(path).read_all();
      return {std::move(state), path, std::move(choice.refused)};
    } catch (const Error& error) {
      refuse_checkpoint(choice, path, error);
    }
  }
  throw Error(ErrorCode::internal, "resuming from " + directory, "there was nothing to try");
}

VerifiedCheckpoint verify_checkpoint(const std::string& path) {
  const CheckpointFolder folder(path);
  folder.verify();
  VerifiedCheckpoint verified{folder.manifest(), 0};
  for (const auto& [name, digest] : verified.manifest.files) verified.bytes += digest.bytes;
  return verified;
}

}  // namespace troupe
