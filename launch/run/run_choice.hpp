#pragma once
#include <optional>
#include <string>

#include "launch/run/run_identity.hpp"

namespace troupe {

/// The settings about a run.
struct RunSettings {
  std::string run_dir = kNewRunFolder;         ///< kNewRunFolder: not given; empty: none
  std::string checkpoint_dir = kNewRunFolder;  ///< kNewRunFolder: not given
  /// Empty: a new run. `latest`: if neither folder is given, the newest checkpoint of this program's newest run that
  /// has one, below runs/; otherwise the newest in the folder given. `best`: likewise. `auto`: as latest if there is
  /// one, else a new run.
  /// RUN or RUN@STEP: a run's folder, or its name below runs/. Also a checkpoint's path, that of a folder of them, or
  /// its name in checkpoint_dir.
  std::string resume;
  bool validate_only = false;   ///< the run in `resume` is only read: by a separate run, with a new folder
  bool asked_to_resume = true;  ///< false: the program wants an earlier run without a --resume
};

/// The run that a job is a life of.
struct RunChoice {
  std::string id;              ///< that of the run's first life
  std::string folder;          ///< empty: none
  std::string checkpoint_dir;  ///< for its checkpoints
  std::string resume;          ///< for choose_checkpoint; empty: it is a new run
  bool is_new_folder = false;  ///< the folder was chosen for it
  bool is_apart = false;       ///< it reads another run's checkpoint, and is not to be resumed: not runs/latest
  std::string note;            ///< for the user, about the choice; may be empty
};

/// Looks for the run below the working directory. `fresh`: the job's identity if its run is a new one. `program`: the
/// path of the program, of which only the file's name counts. Throws Error(usage) if `resume` names nothing that is
/// there, or validate_only would write into another run's folder, Error(unavailable) if there is no checkpoint for
/// `latest`.
RunChoice choose_run(const RunSettings& settings, const RunIdentity& fresh, const std::string& program);

/// `checkpoint_dir`, or the place for checkpoints in a run's folder if that is kNewRunFolder.
std::string checkpoint_folder(const std::string& checkpoint_dir, const std::string& run_folder);

/// The id of the run of this folder, from run.json. Nothing: it is no run's.
std::optional<std::string> run_id_in(const std::string& folder);

}  // namespace troupe
