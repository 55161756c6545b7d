#pragma once
#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

/// This user's job on this host: a launcher, or a program that trains alone.
struct LivingJob {
  pid_t process = 0;
  std::string folder;  ///< of its run, absolute
  std::chrono::system_clock::time_point since;
  std::vector<std::string> command;
  bool launched = false;  ///< by `troupe launch`
};

/// All processes of this user that hold the lock of a run's folder, the oldest first. A process that ends meanwhile is
/// left out.
std::vector<LivingJob> living_jobs();

/// The one whose run has this folder, under any of its names; nothing: this user has none on this host.
std::optional<LivingJob> living_job_in(const std::string& run);

}  // namespace troupe
