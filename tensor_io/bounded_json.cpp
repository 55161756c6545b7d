#include "tensor_io/bounded_json.hpp"

#include <unordered_set>
#include <vector>

#include "tensor_io/bounded_file.hpp"
#include "tensor_io/error.hpp"
#include "tensor_io/xxh3.hpp"

namespace troupe {

nlohmann::json parse_bounded_json(std::string_view text, const std::string& where, const JsonLimits& limits, std::size_t text_offset) {
  using nlohmann::json;
  std::size_t values = 0, keys = 0;
  // The hashes of the keys seen in each object that is open; who makes two of them collide makes his own file refused.
  std::vector<std::unordered_set<std::uint64_t>> open_objects;
  auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > static_cast<int>(limits.depth)) throw Error(ErrorCode::bad_data, where, "JSON nested deeper than " + std::to_string(limits.depth) + " levels");
    if (++values > limits.values) throw Error(ErrorCode::bad_data, where, "more than " + std::to_string(limits.values) + " JSON values");
    if (event == json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == json::parse_event_t::object_end) open_objects.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (++keys > limits.keys) throw Error(ErrorCode::bad_data, where, "more than " + std::to_string(limits.keys) + " JSON keys");
      if (!open_objects.back().insert(xxh3(key)).second) throw Error(ErrorCode::bad_data, where, "key " + printable(key) + " is there twice");
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), watch);
  } catch (const json::parse_error& error) {
    throw Error(ErrorCode::bad_data, where, "not valid JSON at offset " + std::to_string(text_offset + (error.byte > 0 ? error.byte - 1 : 0)));
  } catch (const json::exception& error) {  // a number out of range
    throw Error(ErrorCode::bad_data, where, "not valid JSON: " + printable(error.what()));
  }
}

}  // namespace troupe
