#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "launch/config/config.hpp"

namespace troupe {

/// A run's facts, for a reader of its folder a year later.
struct RunRecord {
  struct Place {
    int rank = 0, slot = 0;
    std::string host;
  };
  std::string run_id, job_id, build_id, backend, strategy;
  std::string git_commit;            ///< of the tree with the program or its working directory; empty: in none
  std::vector<std::string> command;  ///< rank 0's
  std::map<std::string, std::string> versions;  ///< of the libraries that it was built with
  std::vector<Place> ranks;                     ///< when it began
};

/// run.json: schema, start in UTC, the record, the whole config with its hash, and the seeds. `earlier`: the former
/// file, whose start and lives stay if it is of the same run.
std::string to_json(const RunRecord& record, const Config& config, const std::string& earlier = {});

}  // namespace troupe
