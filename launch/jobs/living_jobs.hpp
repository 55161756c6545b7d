#pragma once
#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

/// A job of this user's on this host: a launcher, or a program that trains alone.
struct LivingJob {
  pid_t process = 0;
  std::string folder;  ///< of its run, absolute
  std::chrono::system_clock::time_point since;
  std::vector<std::string> command;
  bool launched = false;  ///< by `troupe launch`
};

/// All processes of this user's that hold the lock of a run's folder, the oldest first. A process that ends meanwhile
/// is left out.
std::vector<LivingJob> living_jobs();

/// That whose run has this folder, under any of its names; nothing: none of this user's on this host.
std::optional<LivingJob> living_job_in(const std::string& run);

}  // namespace troupe
