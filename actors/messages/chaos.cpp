#include "actors/messages/chaos.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "tensor_io/base/error.hpp"
#include "tensor_io/base/mix_seed.hpp"

namespace troupe {
namespace {

using std::chrono::milliseconds;

constexpr std::array kNames = {std::pair{ChaosKind::kill, "kill"},  std::pair{ChaosKind::stop, "stop"},
                               std::pair{ChaosKind::slow, "slow"},  std::pair{ChaosKind::nan, "nan"},
                               std::pair{ChaosKind::net, "net"},    std::pair{ChaosKind::disk, "disk"},
                               std::pair{ChaosKind::leave, "leave"}};

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::usage, "--chaos", why, "for example seed=7,mtbf=30s,kinds=kill+stop");
}

std::uint64_t parse_seed(const std::string& text) {
  if (text.empty() || text.size() > 18 || text.find_first_not_of("0123456789") != std::string::npos)
    refuse("seed '" + text + "' is not a whole number");
  return std::strtoull(text.c_str(), nullptr, 10);
}

milliseconds parse_duration(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  const double factor = unit == "ms" ? 1 : unit == "s" ? 1'000 : unit == "m" ? 60'000 : unit == "h" ? 3'600'000 : 0;
  if (end == text.c_str() || factor == 0 || !(value * factor >= 100 && value * factor <= 86'400'000))
    refuse("mtbf '" + text + "' is not a time from 100ms to 24h");
  return milliseconds(static_cast<std::int64_t>(value * factor));
}

std::vector<ChaosKind> parse_kinds(std::string text) {
  std::replace(text.begin(), text.end(), '+', '|');
  std::vector<ChaosKind> kinds;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, '|');) {
    const auto found =
        std::find_if(kNames.begin(), kNames.end(), [&](const auto& known) { return word == known.second; });
    if (found == kNames.end()) refuse("kind '" + word + "' is not one of kill, stop, slow, nan, net, disk");
    if (std::find(kinds.begin(), kinds.end(), found->first) == kinds.end()) kinds.push_back(found->first);
  }
  if (kinds.empty()) refuse("kinds is empty");
  return kinds;
}

}  // namespace

std::string name_of(ChaosKind kind) {
  const auto found = std::find_if(kNames.begin(), kNames.end(), [&](const auto& known) { return known.first == kind; });
  return found == kNames.end() ? "?" : found->second;
}

ChaosOptions parse_chaos(const std::string& text) {
  ChaosOptions options;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const auto equals = part.find('=');
    const auto name = part.substr(0, equals),
               value = equals == std::string::npos ? std::string() : part.substr(equals + 1);
    if (name == "seed") {
      options.seed = parse_seed(value);
    } else if (name == "mtbf") {
      options.mtbf = parse_duration(value);
    } else if (name == "kinds") {
      options.kinds = parse_kinds(value);
    } else {
      refuse("'" + part + "' is not one of seed=N, mtbf=TIME, kinds=A|B");
    }
  }
  return options;
}

ChaosSchedule::ChaosSchedule(ChaosOptions options, int slots) : options_(std::move(options)), slots_(slots) {
  advance();
}

void ChaosSchedule::advance() {
  const auto seed = options_.life == 0 ? options_.seed : mix_seed(options_.seed, {options_.life});
  const auto draw = [&](std::uint64_t what) { return mix_seed(seed, {0xc4a05, drawn_, what}); };
  // In (0, 1]: a logarithm follows.
  const auto uniform = [&](std::uint64_t what) {
    return (static_cast<double>(draw(what) >> 11) + 1) / 9007199254740992.0;
  };
  at_ms_ -= std::log(uniform(0)) * static_cast<double>(options_.mtbf.count());
  next_.at = milliseconds(static_cast<std::int64_t>(at_ms_));
  next_.kind = options_.kinds[draw(1) % options_.kinds.size()];
  next_.slot = static_cast<int>(draw(2) % static_cast<std::uint64_t>(slots_));
  const auto between = [&](double low, double high) {
    return milliseconds(static_cast<std::int64_t>(low + (high - low) * uniform(3)));
  };
  next_.lasts = next_.kind == ChaosKind::stop   ? between(500, 5'000)
                : next_.kind == ChaosKind::slow ? between(2'000, 8'000)
                                                : milliseconds(0);
  ++drawn_;
}

void Goodput::observe(milliseconds at, std::int64_t steps, bool disturbed) {
  if (started_) {
    time_ += at - last_;
    steps_ += steps - last_steps_;
    if (!disturbed) {
      quiet_time_ += at - last_;
      quiet_steps_ += steps - last_steps_;
    }
  }
  started_ = true;
  last_ = at;
  last_steps_ = steps;
}

double Goodput::share() const noexcept {
  if (quiet_steps_ <= 0 || quiet_time_.count() <= 0 || time_.count() <= 0) return -1;
  const double quiet_pace = static_cast<double>(quiet_steps_) / static_cast<double>(quiet_time_.count());
  return static_cast<double>(steps_) / static_cast<double>(time_.count()) / quiet_pace;
}

std::vector<ChaosEvent> ChaosRun::due(milliseconds at) {
  std::vector<ChaosEvent> events;
  for (; schedule_.next().at <= at; schedule_.advance()) events.push_back(schedule_.next());
  return events;
}

void ChaosRun::happened(const ChaosEvent& event, bool hit) {
  if (!hit) {
    ++misses_;
    return;
  }
  ++hits_[event.kind];
  over_at_ = std::max(over_at_, event.at + event.lasts);
  steps_at_fault_ = steps_;
}

void ChaosRun::observe(milliseconds at, std::int64_t steps, bool whole) {
  steps_ = std::max(steps_, steps);
  // Nothing is well before two steps have followed on the fault: the first may have been under way.
  goodput_.observe(at, steps_, !whole || at <= over_at_ || steps_ <= steps_at_fault_ + 1);
}

std::string ChaosRun::summary() const {
  int faults = 0;
  std::string kinds;
  for (const auto& [kind, hits] : hits_) {
    faults += hits;
    kinds += (kinds.empty() ? "" : ", ") + name_of(kind) + " " + std::to_string(hits);
  }
  char text[256];
  std::snprintf(text, sizeof text, "chaos: %d faults (%s) and %d without a target, in %.1f s; %lld steps, goodput ",
                faults, kinds.c_str(), misses_, static_cast<double>(goodput_.time().count()) / 1000,
                static_cast<long long>(goodput_.steps()));
  char share[64];
  std::snprintf(share, sizeof share, "%.1f %% of the undisturbed pace", goodput_.share() * 100);
  return text + (goodput_.share() < 0 ? std::string("unknown: no undisturbed steps") : std::string(share));
}

}  // namespace troupe
