#include "tensor_io/layout/state_texts.hpp"

#include <cmath>
#include <limits>

#include "tensor_io/base/error.hpp"
#include "tensor_io/base/number_of.hpp"
#include "tensor_io/files/bounded_file.hpp"

namespace troupe {
namespace {

constexpr std::int64_t kMostRanks = 65'536, kMostIndex = std::numeric_limits<std::int32_t>::max(), kMostTasks = 7;

struct Rule {
  enum class Kind { whole, wholes, hash, real } kind = Kind::whole;
  std::int64_t least = 0, most = 0;
  std::size_t count = 0;  ///< of wholes; 0: any
};

const std::map<std::string, Rule, std::less<>>& rules() {
  using Kind = Rule::Kind;
  static const std::map<std::string, Rule, std::less<>> known{
      {"best", {Kind::real}},
      {"best_loss", {Kind::real}},
      {"best_step", {Kind::whole, -1, kMostSteps}},
      {"data_cursor", {Kind::wholes, 0, kMostSteps, 3}},
      {"ddp.bucket_order", {Kind::wholes, 0, kMostIndex}},
      {"ddp.measured", {Kind::whole, 0, 1}},
      {"enough", {Kind::whole, 0, kMostSteps}},
      {"files_hash", {Kind::hash}},
      {"local_steps.last", {Kind::whole, 0, kMostIndex}},
      {"local_steps.next", {Kind::wholes, 0, 2 * kMostSteps}},
      {"local_steps.outer_steps", {Kind::whole, 0, kMostSteps}},
      {"resumed", {Kind::wholes, 0, kMostSteps, 3}},
      {"samples", {Kind::whole, 0, std::numeric_limits<std::int64_t>::max()}},
      {"saved_best", {Kind::real}},
      {"saved_best_loss", {Kind::real}},
      {"saved_best_step", {Kind::whole, -1, kMostSteps}},
      {"step", {Kind::whole, 0, kMostSteps}},
      {kStopSignal, {Kind::whole, 0, 64}},
      {"switching.switches", {Kind::whole, 0, kMostSteps}},
      {"tasks_done", {Kind::whole, 0, kMostTasks}},
      {"uneven_round", {Kind::wholes, 0, kMostSteps, 3}},
      {"world_size", {Kind::whole, 1, kMostRanks}},
  };
  return known;
}

// What a program counts as correct may be any number.
std::optional<double> finite_number(std::string_view text) {
  const auto value = number_of<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

// Divided by single blanks, as order_text writes them.
std::optional<std::vector<std::int64_t>> whole_numbers(std::string_view text, const Rule& rule) {
  std::vector<std::int64_t> values;
  while (!text.empty()) {
    const auto blank = text.find(' ');
    const auto value = whole_number(text.substr(0, blank), rule.least, rule.most);
    if (!value || blank + 1 == text.size()) return std::nullopt;
    values.push_back(*value);
    text = blank == text.npos ? std::string_view() : text.substr(blank + 1);
  }
  if (rule.count > 0 && values.size() != rule.count) return std::nullopt;
  return values;
}

bool fits(const std::string& text, const Rule& rule) {
  switch (rule.kind) {
    case Rule::Kind::whole: return whole_number(text, rule.least, rule.most).has_value();
    case Rule::Kind::wholes: return whole_numbers(text, rule).has_value();
    case Rule::Kind::hash: return number_of<std::uint64_t>(text).has_value();
    case Rule::Kind::real: return finite_number(text).has_value();
  }
  return false;
}

std::string promise_of(const Rule& rule) {
  if (rule.kind == Rule::Kind::hash) return "a whole number of 64 bits";
  if (rule.kind == Rule::Kind::real) return "a finite number";
  const auto range = std::to_string(rule.least) + " to " + std::to_string(rule.most);
  if (rule.kind == Rule::Kind::whole) return "a whole number from " + range;
  return (rule.count > 0 ? std::to_string(rule.count) + " " : "") + "whole numbers from " + range;
}

[[noreturn]] void refuse(const std::string& where, const std::string& what, std::string_view text, const Rule& rule) {
  throw Error(ErrorCode::bad_data, where, what + " is " + printable(text) + " and should be " + promise_of(rule));
}

// A text and its rule, for a reader; nothing if the text is not there.
template <class Parse>
auto read(const StateTexts& texts, const std::string& name, const Parse& parse) -> decltype(parse({}, Rule{})) {
  const auto found = texts.find(name);
  if (found == texts.end()) return std::nullopt;
  const auto& rule = rules().at(name);
  auto value = parse(found->second, rule);
  if (!value) refuse("reading a state", printable(name), found->second, rule);
  return value;
}

}  // namespace

std::optional<std::int64_t> whole_number(std::string_view text, std::int64_t least, std::int64_t most) {
  const auto value = number_of<std::int64_t>(text);
  return value && *value >= least && *value <= most ? value : std::nullopt;
}

void check_state_texts(const StateTexts& texts, const std::string& where, const std::string& in) {
  for (const auto& [name, text] : texts) {
    const auto rule = rules().find(name);
    if (rule != rules().end() && !fits(text, rule->second))
      refuse(where, in + " " + printable(name), text, rule->second);
  }
}

void check_state_counters(const std::map<std::string, double>& counters, const std::string& where,
                          const std::string& in) {
  const auto check = [&](const char* name, double least, double most, const char* promise) {
    const auto found = counters.find(name);
    if (found == counters.end() || (found->second >= least && found->second <= most)) return;
    throw Error(ErrorCode::bad_data, where,
                in + " " + printable(name) + " is " + std::to_string(found->second) + " and should be " + promise);
  };
  check(kLossScale, std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::max(),
        "a positive number of 32 bits");
  check(kLossScaleTracker, 0, static_cast<double>(kMostSteps), "a number of steps");
}

std::optional<std::int64_t> whole_in(const StateTexts& texts, const std::string& name) {
  return read(texts, name,
              [](std::string_view text, const Rule& rule) { return whole_number(text, rule.least, rule.most); });
}

std::optional<std::uint64_t> hash_in(const StateTexts& texts, const std::string& name) {
  return read(texts, name, [](std::string_view text, const Rule&) { return number_of<std::uint64_t>(text); });
}

std::optional<double> real_in(const StateTexts& texts, const std::string& name) {
  return read(texts, name, [](std::string_view text, const Rule&) { return finite_number(text); });
}

std::optional<std::vector<std::int64_t>> wholes_in(const StateTexts& texts, const std::string& name) {
  return read(texts, name, [](std::string_view text, const Rule& rule) { return whole_numbers(text, rule); });
}

}  // namespace troupe
