#include "launch/run/other_runs.hpp"

#include <filesystem>
#include <optional>

#include "launch/process/displayable.hpp"
#include "launch/run/checkpoint_owner.hpp"
#include "launch/run/run_choice.hpp"
#include "launch/run/run_file.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

// A checkpoint, or a folder of them. Nothing: loading says what it is, or that it is nothing.
std::optional<std::string> resumed_path(const RunChoice& choice) {
  if (choice.resume == "latest" || choice.resume == "best") return choice.checkpoint_dir;
  for (const auto& path : {choice.resume, choice.checkpoint_dir + "/" + choice.resume}) {
    std::error_code failure;
    if (const auto meant = path_meant(path); fs::is_directory(meant, failure)) return meant;
  }
  return std::nullopt;
}

}  // namespace

void refuse_other_runs(const RunChoice& choice, const std::string& resume, const std::string& fresh_id) {
  if (choice.resume.empty()) return;
  const bool is_named = resume != "latest" && resume != "auto" && resume != "best";
  const auto than =
      " of another run than " + displayable(is_named ? resume : choice.checkpoint_dir, 200) + ", which resume names";
  const auto in_folder = choice.folder.empty() ? std::nullopt : run_id_in(choice.folder);
  if (in_folder && *in_folder != choice.id && *in_folder != fresh_id) {
    throw Error(ErrorCode::usage, "run_dir", displayable(choice.folder, 200) + " is the folder" + than,
                "leave --run_dir out to go on in the resumed run's folder, or name a new one");
  }
  const auto path = resumed_path(choice);
  if (!path) return;
  const auto& directory = choice.checkpoint_dir;
  const auto others = list_checkpoints(directory);
  const auto refuse = [&] {
    throw Error(ErrorCode::usage, "checkpoint_dir",
                displayable(directory, 200) + " holds checkpoints" + than + ", the newest of step " +
                    std::to_string(others.back().step),
                "choose another --checkpoint_dir, or continue the run there with --resume latest");
  };
  const auto resumed = checkpoint_facts(*path);
  if (is_in(*path, directory)) {
    // In the run's own folder, run.json decides.
    const auto id = text_of(resumed, "run");
    const bool is_own = is_in(directory, checkpoint_folder(kNewRunFolder, choice.folder));
    if (!is_own && !id.empty() && id != choice.id) refuse();
    return;
  }
  const auto mine = run_id_of(resumed).value_or(fresh_id);
  bool names_mine = others.empty();
  for (const auto& other : others) {
    const auto id = run_id_of(checkpoint_facts(other.path));
    if (id && *id != mine && *id != fresh_id) refuse();
    names_mine = names_mine || id;
  }
  if (!names_mine) refuse();
}

}  // namespace troupe
