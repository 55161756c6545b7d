#include "launch/process/environment.hpp"

#include <charconv>
#include <cstdlib>

#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

using Get = std::function<const char*(const char*)>;

std::optional<long> number(const Get& get, const char* name, long minimum, long maximum) {
  const char* text = get(name);
  if (text == nullptr) return std::nullopt;
  const std::string value(text);
  long parsed = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed);
  if (error != std::errc() || end != value.data() + value.size() || parsed < minimum || parsed > maximum) {
    throw Error(
        ErrorCode::usage, std::string("environment variable ") + name,
        "'" + value + "' is not a whole number from " + std::to_string(minimum) + " to " + std::to_string(maximum));
  }
  return parsed;
}

}  // namespace

RankEnvironment read_environment(const Get& given) {
  const Get get = given ? given : Get([](const char* name) { return std::getenv(name); });
  RankEnvironment place;
  const auto rank = number(get, "RANK", 0, 1'000'000);
  const auto world_size = number(get, "WORLD_SIZE", 1, 1'000'000);
  if (!rank && !world_size) return place;
  if (!rank || !world_size) {
    throw Error(ErrorCode::usage, std::string("environment variable ") + (rank ? "WORLD_SIZE" : "RANK"),
                std::string("it is not set although ") + (rank ? "RANK" : "WORLD_SIZE") + " is",
                "a launcher sets both; unset both to run a single rank");
  }
  const auto slot = number(get, "TROUPE_SLOT", 0, 1'000'000);
  const auto is_set = [&](const char* name) { return get(name) != nullptr && std::string(get(name)) == "1"; };
  place.spare = is_set("TROUPE_SPARE");
  if (*rank >= *world_size && !place.spare) {
    throw Error(ErrorCode::usage, "environment variable RANK",
                std::to_string(*rank) + " is not below WORLD_SIZE " + std::to_string(*world_size));
  }
  place.launched = true;
  place.rank = static_cast<int>(*rank);
  place.world_size = static_cast<int>(*world_size);
  place.slot = static_cast<int>(slot.value_or(*rank));
  place.start_over = is_set("TROUPE_START_OVER");
  if (const char* recovery = get("TROUPE_RECOVERY")) place.recovery = std::string(recovery) != "0";
  if (const char* folder = get("TROUPE_KEYS")) place.keys = folder;
  place.insecure = is_set("TROUPE_INSECURE_NETWORK");
  if (const char* text = get("TROUPE_INCARNATION")) place.incarnation = std::strtoull(text, nullptr, 16);
  place.local_rank = static_cast<int>(number(get, "LOCAL_RANK", 0, 1'000'000).value_or(*rank));
  place.local_world_size = static_cast<int>(number(get, "LOCAL_WORLD_SIZE", 1, 1'000'000).value_or(*world_size));
  if (const char* address = get("MASTER_ADDR")) place.master_addr = address;
  place.master_port = static_cast<std::uint16_t>(number(get, "MASTER_PORT", 1, 65535).value_or(0));
  if (const char* address = get("TROUPE_ADDRESS")) {
    place.interface_address = address;
  } else if (place.local_world_size < place.world_size) {
    place.interface_address.clear();
  }
  if (const char* folder = get("TROUPE_RUN_DIR")) place.run.folder = folder;
  if (const char* id = get("TROUPE_RUN")) place.run.run_id = id;
  if (const char* checkpoint = get("TROUPE_CHECKPOINT")) place.run.checkpoint = checkpoint;
  if (const char* node = get("TROUPE_NODE")) {
    place.node = node;
  } else if (const auto group = number(get, "GROUP_RANK", 0, 1'000'000)) {
    place.node = "node" + std::to_string(*group);
  }
  if (const char* job = get("TROUPE_JOB_ID")) {
    place.run.job_id = job;
  } else if (const char* run = get("TORCHELASTIC_RUN_ID")) {
    place.run.job_id = run;
  }
  if (const char* coordinator = get("TROUPE_COORDINATOR")) {
    const std::string text(coordinator);
    const auto colon = text.rfind(':');
    const auto port = colon == std::string::npos ? std::nullopt
                                                 : number([&](const char*) { return text.c_str() + colon + 1; },
                                                          "TROUPE_COORDINATOR", 1, 65535);
    if (!port || colon == 0)
      throw Error(ErrorCode::usage, "environment variable TROUPE_COORDINATOR", "'" + text + "' is not host:port");
    place.coordinator_host = text.substr(0, colon);
    place.coordinator_port = static_cast<std::uint16_t>(*port);
  } else if (number(get, "TORCHELASTIC_RESTART_COUNT", 0, 1'000'000).value_or(0) > 0) {
    place.restarted = true;
  }
  if (place.coordinator_host.empty() && place.world_size > 1 && place.master_port == 0) {
    throw Error(ErrorCode::usage, "environment variable MASTER_PORT",
                "it is not set, and neither is TROUPE_COORDINATOR", "start the program with troupe launch or torchrun");
  }
  return place;
}

}  // namespace troupe
