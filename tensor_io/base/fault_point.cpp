#include "tensor_io/base/fault_point.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tensor_io/base/error.hpp"
#include "tensor_io/base/number_of.hpp"

namespace troupe {
namespace {

[[noreturn]] void refuse(const std::string& word, const std::string& why) {
  throw Error(ErrorCode::usage, "TROUPE_FAULT", "'" + word + "' " + why, "for example slot=1,step=5,at=vote");
}

template <class Number>
Number number_in(const std::string& word, const std::string& text) {
  const auto number = number_of<Number>(text);
  if (!number) refuse(word, "is not a number");
  return *number;
}

PlannedFault fault_of(const std::string& text) {
  PlannedFault fault;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    const auto equals = word.find('=');
    const auto name = word.substr(0, equals), value = equals == std::string::npos ? "" : word.substr(equals + 1);
    if (name == "at") {
      check_fault_place("TROUPE_FAULT", value);
      fault.place = value;
    } else if (name == "slot") {
      const auto slot = value == "coordinator" ? 0 : number_in<std::int64_t>(word, value);
      if (slot < 0) refuse(word, "is not a slot: slots count from 0");
      fault.slot = value == "coordinator" ? value : std::to_string(slot);
    } else if (name == "step") {
      fault.step = number_in<std::int64_t>(word, value);
    } else if (name == "life") {
      fault.life = number_in<int>(word, value);
    } else if (name == "signal") {
      fault.signal = number_in<int>(word, value);
    } else {
      refuse(word, "is not one of slot, step, at, life, signal");
    }
  }
  if (fault.slot.empty() || fault.place.empty()) refuse(text, "names no slot, or no place (at)");
  return fault;
}

struct Armed {
  PlannedFault fault;
  bool armed = true;
};

// Those of this process.
std::vector<Armed> read_faults() {
  const char* slot = std::getenv("TROUPE_SLOT");
  const char* restarts = std::getenv("TROUPE_RESTARTS");
  std::vector<Armed> mine;
  if (slot == nullptr) return mine;
  for (auto& fault : planned_faults()) {
    if (fault.slot == slot && std::to_string(fault.life) == (restarts == nullptr ? "0" : restarts))
      mine.push_back({std::move(fault)});
  }
  return mine;
}

std::vector<Armed>& faults() {
  static std::vector<Armed> instance = read_faults();
  return instance;
}

thread_local std::shared_ptr<FaultWatch> watch_of_thread;

}  // namespace

const std::vector<std::string>& fault_places() {
  static const std::vector<std::string> places{
      "allocate", "connect", "distribute", "data",      "forward", "backward", "buckets",   "collective", "reduced",
      "vote",     "voted",   "committed",  "optimizer", "stage",   "switch",   "switched",  "validate",   "validated",
      "save",     "end",     "snapshot",   "heal",      "trace",   "journal",  "journalled"};
  return places;
}

void check_fault_place(const std::string& source, const std::string& place) {
  const auto& places = fault_places();
  if (std::find(places.begin(), places.end(), place) != places.end()) return;
  std::string all;
  for (const auto& known : places) all += (all.empty() ? "" : ", ") + known;
  throw Error(ErrorCode::usage, source, "'" + place + "' is not a fault point", "known: " + all);
}

const std::shared_ptr<FaultWatch>& fault_watch() noexcept { return watch_of_thread; }

void set_fault_watch(std::shared_ptr<FaultWatch> watch) noexcept { watch_of_thread = std::move(watch); }

void fault_point(const char* place, std::int64_t step) {
  if (watch_of_thread) watch_of_thread->at(place, step);
  for (auto& planned : faults()) {
    if (!planned.armed || planned.fault.step != step || planned.fault.place != place) continue;
    planned.armed = false;
    ::kill(::getpid(), planned.fault.signal);
  }
}

std::vector<PlannedFault> planned_faults() {
  std::vector<PlannedFault> all;
  const char* given = std::getenv("TROUPE_FAULT");
  std::istringstream texts(given == nullptr ? "" : given);
  for (std::string text; std::getline(texts, text, ';');) {
    if (!text.empty()) all.push_back(fault_of(text));
  }
  return all;
}

}  // namespace troupe
