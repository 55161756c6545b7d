#include "launch/config/data_order.hpp"

#include <nlohmann/json.hpp>

#include "launch/config/config.hpp"

namespace troupe {

namespace {

std::vector<std::string> changes_of(const std::vector<std::string>& names, std::string_view saved,
                                    const Config& config) {
  const auto before = nlohmann::json::parse(saved, nullptr, false), now = nlohmann::json::parse(config_to_json(config));
  std::vector<std::string> changes;
  if (!before.is_object()) return changes;
  for (const auto& name : names) {
    const auto was = before.find(name), is = now.find(name);
    if (was == before.end() || is == now.end() || *was == *is) continue;
    changes.push_back(name + " was " + was->dump(-1, ' ', true).substr(0, 80) + ", is " + is->dump());
  }
  return changes;
}

}  // namespace

std::vector<std::string> data_order_changes(std::string_view saved, const Config& config) {
  return changes_of({"shuffle", "shuffle_buffer", "seed", "data", "drop_last"}, saved, config);
}

std::string remedy_for_model(std::string_view saved, const Config& config) {
  std::vector<std::string> names{"num_classes", "in_channels", "image_size", "data", "optimizer"};
  for (const auto& [name, declared] : config.declared) names.push_back(name);
  std::string changes;
  for (const auto& change : changes_of(names, saved, config)) changes += (changes.empty() ? "" : "; ") + change;
  return (changes.empty() ? "resume with the program that saved it" : changes + ": resume with the former value") +
         ", or start a new run without --resume";
}

std::int64_t same_sample(std::string_view saved, const Config& config, std::int64_t& step_in_epoch) {
  const auto before = nlohmann::json::parse(saved, nullptr, false);
  if (!before.is_object() || !before.contains("batch_size") || !before["batch_size"].is_number_integer()) return 0;
  const auto was = before["batch_size"].get<std::int64_t>();
  std::int64_t seen = 0;
  if (was <= 0 || __builtin_mul_overflow(step_in_epoch, was, &seen)) return 0;
  step_in_epoch = seen / config.batch_size;
  return seen % config.batch_size;
}

}  // namespace troupe
