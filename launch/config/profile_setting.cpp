#include "launch/config/profile_setting.hpp"

#include <charconv>
#include <sstream>

#include "launch/process/displayable.hpp"

namespace troupe {
namespace {

constexpr std::int64_t kMostStepsWithOperators = 1'000;

bool parse_steps(const std::string& text, ProfileSetting& setting) {
  const auto colon = text.find(':');
  if (colon == std::string::npos) return false;
  const auto number = [](const char* begin, const char* end, std::int64_t& value) {
    const auto result = std::from_chars(begin, end, value);
    return result.ec == std::errc() && result.ptr == end && value >= 0;
  };
  const char* begin = text.data();
  return number(begin, begin + colon, setting.first) && number(begin + colon + 1, begin + text.size(), setting.last);
}

}  // namespace

bool parse_switch(const std::string& text, bool& value) {
  if (text == "true" || text == "1" || text == "yes" || text == "on") return value = true, true;
  if (text == "false" || text == "0" || text == "no" || text == "off") return value = false, true;
  return false;
}

std::string parse_profile(const std::string& text, ProfileSetting& setting) {
  setting = {};
  if (parse_switch(text, setting.table)) return {};
  auto refused = "'" + displayable(text, 80) + "' is not off, true or steps=FIRST:LAST";
  std::istringstream parts(text);
  bool steps = false;
  for (std::string part; std::getline(parts, part, ',');) {
    if (part.starts_with("steps=")) {
      if (!parse_steps(part.substr(6), setting)) return refused;
      if (!setting.traces()) return refused + ": LAST is not part of the window, so it must be above FIRST";
      steps = true;
    } else if (part.starts_with("operators=")) {
      if (!parse_switch(part.substr(10), setting.operators)) return refused + ", and operators on or off";
    } else {
      return refused;
    }
  }
  if (!steps || text.ends_with(",")) return refused;
  if (setting.operators && setting.last - setting.first > kMostStepsWithOperators)
    return "'" + displayable(text, 80) + "' asks for operators of more than " +
           std::to_string(kMostStepsWithOperators) +
           " steps, which Kineto keeps in memory: take fewer, or operators=off";
  setting.table = true;
  return {};
}

ProfileSetting profile_setting(const std::string& text) {
  ProfileSetting setting;
  parse_profile(text, setting);
  return setting;
}

}  // namespace troupe
