#include "launch/observe/run_info.hpp"

#include <ctime>

#include <nlohmann/json.hpp>

namespace troupe {
namespace {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

std::string to_json(const RunRecord& record, const Config& config) {
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (const auto& place : record.ranks)
    ranks.push_back({{"rank", place.rank}, {"slot", place.slot}, {"host", place.host}});
  const nlohmann::ordered_json run{{"schema", 1},
                                   {"job_id", record.job_id},
                                   {"started", utc_now()},
                                   {"command", record.command},
                                   {"versions", record.versions},
                                   {"build_id", record.build_id},
                                   {"git_commit", record.git_commit},
                                   {"world_size", record.ranks.size()},
                                   {"ranks", ranks},
                                   {"backend", record.backend},
                                   {"strategy", record.strategy},
                                   {"seeds", {{"seed", config.seed}}},
                                   {"config_hash", config_hash(config)},
                                   {"config", nlohmann::ordered_json::parse(config_to_json(config))}};
  return run.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace troupe
