#pragma once
#include <ctime>
#include <optional>
#include <string>

namespace troupe {

/// The value of run_dir for which each run makes a new folder below runs/.
inline constexpr const char* kNewRunFolder = "auto";
/// The parent of these folders.
inline constexpr const char* kRunsFolder = "runs";

/// 128 random bits, as text.
std::string make_job_id();

/// Distinguishes one run from all others.
struct RunIdentity {
  std::string id;
  std::time_t begun = 0;
};
/// A new one, which begins now.
RunIdentity new_run_identity();
/// That of the parent process: the same in each life that it gives to this program. Empty if /proc does not have
/// it.
std::optional<RunIdentity> parent_identity();

/// runs/<YYYYMMDD-HHMMSS>-<program>-<4 letters>: the local time, the program's file name, letters from the id.
std::string run_folder_of(const RunIdentity& run, const std::string& program);
/// Whether a folder bears such a name. For a script that starts the program, too, if run.json has the program.
bool is_folder_of(const std::string& folder, const std::string& program);

}  // namespace troupe
