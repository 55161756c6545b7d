#include "tensor_io/checkpoint/rank_state.hpp"

#include <cereal/external/base64.hpp>

#include <cmath>
#include <utility>

#include "tensor_io/base/error.hpp"
#include "tensor_io/files/bounded_file.hpp"
#include "tensor_io/files/bounded_json.hpp"
#include "tensor_io/layout/state_texts.hpp"

namespace troupe {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::int64_t kVersion = 1;

// What does not fit is refused with its name.
class RankStateReader {
 public:
  explicit RankStateReader(const std::string& where) : where_(where) {}

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ErrorCode::bad_data, where_, "is not a rank's state: " + why);
  }

  const json& field(const json& object, const std::string& name, json::value_t type) const {
    const auto found = object.find(name);
    if (found == object.end()) refuse(printable(name) + " is missing");
    if (found->type() != type) refuse(printable(name) + " is a " + found->type_name());
    return *found;
  }
  std::int64_t count(const json& object, const std::string& name) const {
    const auto value = field(object, name, json::value_t::number_unsigned).get<std::uint64_t>();
    if (value > static_cast<std::uint64_t>(INT64_MAX)) refuse(printable(name) + " is " + std::to_string(value));
    return static_cast<std::int64_t>(value);
  }
  std::map<std::string, double> numbers(const json& object) const {
    std::map<std::string, double> values;
    for (const auto& [name, value] : object.items()) {
      if (!value.is_number()) refuse("counter " + printable(name) + " is a " + value.type_name());
      values[name] = value.get<double>();
    }
    return values;
  }
  std::map<std::string, std::string> texts(const json& object) const {
    std::map<std::string, std::string> values;
    for (const auto& [name, value] : object.items()) {
      if (!value.is_string()) refuse("string " + printable(name) + " is a " + value.type_name());
      values[name] = value.get<std::string>();
    }
    return values;
  }
  // A generator's state as base64, beside its length.
  std::vector<std::uint8_t> bytes(const json& object) const {
    const auto decoded =
        cereal::base64::decode(field(object, "base64", json::value_t::string).get_ref<const std::string&>());
    if (decoded.size() != static_cast<std::uint64_t>(count(object, "bytes")))
      refuse("'rng' states " + std::to_string(count(object, "bytes")) + " bytes and has " +
             std::to_string(decoded.size()));
    return {decoded.begin(), decoded.end()};
  }

 private:
  const std::string& where_;
};

}  // namespace

std::string RankState::to_json() const {
  for (const auto& [key, value] : counters) {
    if (!std::isfinite(value))
      throw Error(ErrorCode::usage, "writing a rank's state", "counter " + printable(key) + " is not finite");
  }
  ordered_json root;
  root["format_version"] = kVersion;
  root["epoch"] = epoch;
  root["step_in_epoch"] = step_in_epoch;
  root["counters"] = ordered_json::object();
  for (const auto& [name, value] : counters) root["counters"][name] = value;
  root["strings"] = ordered_json::object();
  for (const auto& [name, value] : strings) root["strings"][name] = value;
  root["rng"] = {{"bytes", rng.size()}, {"base64", cereal::base64::encode(rng.data(), rng.size())}};
  std::string result;
  try {
    result = root.dump(2) + "\n";
    // What from_json would refuse is not written.
    parse_bounded_json(result, "writing a rank's state", {.depth = 2});
  } catch (const json::exception& error) {  // not UTF-8
    throw Error(ErrorCode::usage, "writing a rank's state", error.what());
  } catch (const Error& error) {
    throw Error(ErrorCode::usage, "writing a rank's state", error.report().cause);
  }
  if (result.size() > kMaxTextBytes)
    throw Error(ErrorCode::usage, "writing a rank's state", "it has " + std::to_string(result.size()) + " bytes");
  return result;
}

RankState RankState::from_json(std::string_view text, const std::string& where) {
  if (text.size() > kMaxTextBytes)
    throw Error(ErrorCode::bad_data, where,
                "has " + std::to_string(text.size()) + " bytes, more than a rank's state may have");
  const auto root = parse_bounded_json(text, where, {.depth = 2});
  if (!root.is_object()) throw Error(ErrorCode::bad_data, where, "is not a JSON object");
  const RankStateReader reader(where);
  if (const auto version = reader.count(root, "format_version"); version != kVersion)
    reader.refuse("format version " + std::to_string(version) + ", this program reads " + std::to_string(kVersion));
  RankState state;
  state.epoch = reader.count(root, "epoch");
  state.step_in_epoch = reader.count(root, "step_in_epoch");
  state.counters = reader.numbers(reader.field(root, "counters", json::value_t::object));
  check_state_counters(state.counters, where, "is not a rank's state: counter");
  state.strings = reader.texts(reader.field(root, "strings", json::value_t::object));
  state.rng = reader.bytes(reader.field(root, "rng", json::value_t::object));
  return state;
}

}  // namespace troupe
