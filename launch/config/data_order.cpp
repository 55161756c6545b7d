#include "launch/config/data_order.hpp"

#include <nlohmann/json.hpp>

#include "launch/config/config.hpp"

namespace troupe {

std::vector<std::string> data_order_changes(std::string_view saved, const Config& config) {
  const auto before = nlohmann::json::parse(saved, nullptr, false), now = nlohmann::json::parse(config_to_json(config));
  std::vector<std::string> changes;
  if (!before.is_object()) return changes;
  for (const char* name : {"batch_size", "shuffle", "shuffle_buffer", "seed", "data"}) {
    const auto was = before.find(name), is = now.find(name);
    if (was == before.end() || is == now.end() || *was == *is) continue;
    changes.push_back(std::string(name) + " was " + was->dump().substr(0, 80) + ", is " + is->dump());
  }
  return changes;
}

}  // namespace troupe
