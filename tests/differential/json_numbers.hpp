#pragma once
// Doubles in JSON, which come back with the same bits. JSON has no numbers that are not finite: they are "nan", "inf",
// "-inf".
#include <cmath>
#include <cstdlib>
#include <string>

#include <nlohmann/json.hpp>

namespace troupe::differential {

inline nlohmann::json json_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

inline double number_of(const nlohmann::json& value) {
  return value.is_string() ? std::strtod(value.get<std::string>().c_str(), nullptr) : value.get<double>();
}

}  // namespace troupe::differential
