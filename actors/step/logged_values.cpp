#include "actors/step/logged_values.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstring>

#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

constexpr std::array kReduceNames{"mean", "sum", "min", "max"};

// std::min and std::max would lose a NaN.
double extreme(double a, double b, bool largest) {
  if (std::isnan(a) || std::isnan(b)) return std::nan("");
  return largest ? std::max(a, b) : std::min(a, b);
}

template <class Number>
void put(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

template <class Number>
Number take(std::string_view& bytes) {
  Number number;
  if (bytes.size() < sizeof number) throw Error(ErrorCode::bad_data, "logged values", "they are cut short");
  std::memcpy(&number, bytes.data(), sizeof number);
  bytes.remove_prefix(sizeof number);
  return number;
}

bool may_stand_in_a_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || std::strchr("_-./ ", c); }

}  // namespace

void check_metric_name(const std::string& name) {
  const auto refuse = [&](const std::string& cause) {
    throw Error(ErrorCode::usage, "log", cause,
                "use letters, digits, _ - . / and inner spaces, as in \"accuracy/top5\"");
  };
  if (name.empty()) refuse("the metric has no name");
  if (name.size() > LoggedValues::kLongestName)
    refuse("the metric's name has " + std::to_string(name.size()) + " bytes, and " +
           std::to_string(LoggedValues::kLongestName) + " are allowed");
  if (!std::all_of(name.begin(), name.end(), may_stand_in_a_name) || name.front() == ' ' || name.back() == ' ')
    refuse("'" + name + "' is not a valid metric name");
}

void LoggedValues::add(const std::string& name, double value, Reduce reduce, double weight) {
  if (!(weight >= 0))
    throw Error(ErrorCode::usage, "log", "the weight of '" + name + "' is " + std::to_string(weight),
                "give a number of samples, 0 or more");
  if (weight == 0) return;
  merge(name, {reduce, reduce == Reduce::mean ? value * weight : value, weight});
}

void LoggedValues::add(const LoggedValues& others) {
  for (const auto& [name, value] : others.values_) merge(name, value);
}

void LoggedValues::merge(const std::string& name, const Value& other) {
  const auto [found, is_new] = values_.try_emplace(name, other);
  if (is_new) {
    if (values_.size() <= kMostNames) return;
    values_.erase(found);
    throw Error(ErrorCode::usage, "log",
                "'" + name + "' is one metric too many, " + std::to_string(kMostNames) + " are allowed",
                "log fewer names");
  }
  auto& mine = found->second;
  if (mine.reduce != other.reduce)
    throw Error(ErrorCode::usage, "log",
                "'" + name + "' is reduced by " + kReduceNames[static_cast<std::size_t>(mine.reduce)] + " and by " +
                    kReduceNames[static_cast<std::size_t>(other.reduce)],
                "log it the same way everywhere");
  switch (mine.reduce) {
    case Reduce::mean:
    case Reduce::sum: mine.value += other.value; break;
    case Reduce::min: mine.value = extreme(mine.value, other.value, false); break;
    case Reduce::max: mine.value = extreme(mine.value, other.value, true); break;
  }
  mine.weight += other.weight;
}

std::vector<std::pair<std::string, double>> LoggedValues::results() const {
  std::vector<std::pair<std::string, double>> results;
  for (const auto& [name, value] : values_) results.emplace_back(name, value.result());
  return results;
}

std::optional<double> LoggedValues::value(const std::string& name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? std::nullopt : std::optional(found->second.result());
}

std::string LoggedValues::encode() const {
  std::string bytes;
  if (values_.empty()) return bytes;
  put(bytes, static_cast<std::uint32_t>(values_.size()));
  for (const auto& [name, value] : values_) {
    put(bytes, static_cast<std::uint8_t>(value.reduce));
    put(bytes, static_cast<std::uint8_t>(name.size()));
    put(bytes, value.value);
    put(bytes, value.weight);
    bytes += name;
  }
  return bytes;
}

LoggedValues LoggedValues::decode(std::string_view bytes) {
  LoggedValues logged;
  if (bytes.empty()) return logged;
  const auto count = take<std::uint32_t>(bytes);
  if (count > kMostNames) throw Error(ErrorCode::bad_data, "logged values", "they are too many");
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto reduce = take<std::uint8_t>(bytes), length = take<std::uint8_t>(bytes);
    const auto value = take<double>(bytes), weight = take<double>(bytes);
    if (reduce >= kReduceNames.size() || length > kLongestName || length > bytes.size() || !(weight > 0))
      throw Error(ErrorCode::bad_data, "logged values", "no rank sends such a value");
    logged.merge(std::string(bytes.substr(0, length)), {static_cast<Reduce>(reduce), value, weight});
    bytes.remove_prefix(length);
  }
  return logged;
}

}  // namespace troupe
