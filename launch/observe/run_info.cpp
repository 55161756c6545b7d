#include "launch/observe/run_info.hpp"

#include <cstdint>
#include <cstdio>
#include <ctime>

#include <nlohmann/json.hpp>

namespace troupe {
namespace {

// To the millisecond: the newest of several runs is found by it.
std::string utc_now() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  std::tm parts{};
  ::gmtime_r(&now.tv_sec, &parts);
  char seconds[32], text[48];
  std::strftime(seconds, sizeof seconds, "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text, sizeof text, "%s.%03ldZ", seconds, now.tv_nsec / 1'000'000);
  return text;
}

}  // namespace

std::string to_json(const RunRecord& record, const Config& config, const std::string& earlier) {
  const auto began = utc_now();
  auto started = began;
  auto lives = nlohmann::ordered_json::array();
  if (const auto before = nlohmann::ordered_json::parse(earlier, nullptr, false);
      before.is_object() && !record.run_id.empty() &&
      before.value("run_id", nlohmann::ordered_json()) == record.run_id) {
    started = before.value("started", started);
    lives = before.value("lives", lives);
  }
  lives.push_back({{"job_id", record.job_id}, {"started", began}, {"resume", config.resume}});
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (const auto& place : record.ranks)
    ranks.push_back({{"rank", place.rank}, {"slot", place.slot}, {"host", place.host}});
  const nlohmann::ordered_json run{{"schema", 1},
                                   {"run_id", record.run_id},
                                   {"job_id", record.job_id},
                                   {"started", started},
                                   {"lives", lives},
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
