#pragma once
#include <ctime>
#include <optional>
#include <string>

namespace troupe {

/// The value of run_dir for which each run makes a folder of its own below runs/.
inline constexpr const char* kNewRunFolder = "auto";
/// Where these folders are made.
inline constexpr const char* kRunsFolder = "runs";

/// 128 random bits, as text.
std::string make_job_id();

/// What tells one run from all others.
struct RunIdentity {
  std::string id;
  std::time_t begun = 0;
};
/// A new one, which begins now.
RunIdentity new_run_identity();
/// That of the process that started this one: the same in each life that it gives to this program. Empty where /proc
/// does not say.
std::optional<RunIdentity> parent_identity();

/// runs/<YYYYMMDD-HHMMSS>-<program>-<4 letters>: the local time, the program's file name, letters from the id.
std::string run_folder_of(const RunIdentity& run, const std::string& program);
/// Whether a folder bears such a name: of a script that starts the program, too, where run.json has the program.
bool is_folder_of(const std::string& folder, const std::string& program);

}  // namespace troupe
