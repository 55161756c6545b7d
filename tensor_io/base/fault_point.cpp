#include "tensor_io/base/fault_point.hpp"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace troupe {
namespace {

struct Fault {
  std::string place;
  std::int64_t step = 0;
  int signal = SIGKILL;
  bool armed = true;
};

std::string word_of(const std::string& text, const std::string& name) {
  const auto at = ("," + text).find("," + name + "=");
  if (at == std::string::npos) return {};
  const auto begin = at + name.size() + 1;
  return text.substr(begin, text.find(',', begin) - begin);
}

std::vector<Fault> read_faults() {
  std::vector<Fault> faults;
  const char* all = std::getenv("TROUPE_FAULT");
  const char* slot = std::getenv("TROUPE_SLOT");
  const char* restarts = std::getenv("TROUPE_RESTARTS");
  if (all == nullptr || slot == nullptr) return faults;
  std::istringstream lines(all);
  for (std::string text; std::getline(lines, text, ';');) {
    const auto life = word_of(text, "life");
    if (word_of(text, "slot") != slot || (life.empty() ? "0" : life) != (restarts ? restarts : "0")) continue;
    Fault fault;
    fault.place = word_of(text, "at");
    fault.step = std::atoll(word_of(text, "step").c_str());
    if (const auto number = word_of(text, "signal"); !number.empty()) fault.signal = std::atoi(number.c_str());
    faults.push_back(std::move(fault));
  }
  return faults;
}

std::vector<Fault>& faults() {
  static std::vector<Fault> instance = read_faults();
  return instance;
}

thread_local std::shared_ptr<FaultWatch> watch_of_thread;

}  // namespace

const std::shared_ptr<FaultWatch>& fault_watch() noexcept { return watch_of_thread; }

void set_fault_watch(std::shared_ptr<FaultWatch> watch) noexcept { watch_of_thread = std::move(watch); }

void fault_point(const char* place, std::int64_t step) {
  if (watch_of_thread) watch_of_thread->at(place, step);
  for (auto& planned : faults()) {
    if (!planned.armed || planned.step != step || planned.place != place) continue;
    planned.armed = false;
    ::kill(::getpid(), planned.signal);
  }
}

}  // namespace troupe
