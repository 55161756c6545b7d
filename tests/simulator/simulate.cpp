// Simulated jobs, one per seed, until one breaks a promise: ./dev simulate [SEEDS [FIRST]] [--faults 0,2] [--log]
// [--plant BUG]
#include <chrono>
#include <cstdio>

#include "actors/simulator/scale.hpp"
#include "actors/simulator/simulation.hpp"
#include "tests/simulator/arguments.hpp"
#include "tests/simulator/planted.hpp"

using namespace troupe;
using namespace troupe::simulator;

namespace {

JobOptions options_of(std::uint64_t seed, const Arguments& arguments) {
  auto options = job_of_seed(seed);
  options.faults = chosen(arguments, seed, std::move(options.faults));
  if (!arguments.plant.empty()) options.plan = planted_bugs().at(arguments.plant);
  options.keep_log = arguments.log;
  return options;
}

// What is left of a seed that broke a promise, and how to see it again.
void tell(std::uint64_t seed, const JobOptions& options, const Outcome& outcome, const Arguments& arguments) {
  std::printf("seed %llu broke %s\n", static_cast<unsigned long long>(seed), outcome.violation->c_str());
  const auto least = shrink(options);
  const auto all = job_of_seed(seed).faults;
  std::string numbers;
  std::printf("%d ranks on %d hosts, %d spares; of %zu faults these are enough:\n", least.ranks, least.hosts,
              least.spares, options.faults.size());
  for (const auto& fault : least.faults) {
    std::printf("  %s\n", fault.to_string().c_str());
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].kind == fault.kind && all[i].at == fault.at && all[i].target == fault.target &&
          all[i].step == fault.step)
        numbers += (numbers.empty() ? "" : ",") + std::to_string(i);
    }
  }
  std::printf("again: ./dev simulate 1 %llu --log%s%s%s\n", static_cast<unsigned long long>(seed),
              numbers.empty() ? "" : (" --faults " + numbers).c_str(), arguments.plant.empty() ? "" : " --plant ",
              arguments.plant.c_str());
}

void tell_scale(const std::vector<int>& ranks) {
  std::printf("%7s  %-28s  %9s  %9s  %9s  %12s\n", "ranks", "change", "messages", "per rank", "seconds", "coordinator");
  for (const int n : ranks) {
    if (n < 4) refuse("--ranks takes 4 or more");
    const auto result = measure_scale(n);
    const std::pair<const char*, const ScaleResult::Change*> changes[] = {
        {"the job begins", &result.forming},
        {"one dies and is replaced", &result.replacing},
        {"one dies, the others go on", &result.shrinking},
        {"coordinator and a rank die", &result.taking_over}};
    for (const auto& [name, change] : changes) {
      std::printf("%7d  %-28s  %9zu  %9.2f  %9.3f  %12.4f\n", n, name, change->count,
                  static_cast<double>(change->count) / n, change->spent.count(), change->coordinating.count());
      for (const auto& [type, count] : change->messages) {
        if (count > static_cast<std::size_t>(n) / 2) std::printf("%7s    %-26s  %9zu\n", "", type.c_str(), count);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto arguments = parse_arguments(argc, argv, 10'000);
  if (!arguments.plant.empty() && !planted_bugs().contains(arguments.plant)) {
    std::string known;
    for (const auto& [name, bug] : planted_bugs()) known += " " + name;
    refuse("there is no bug '" + arguments.plant + "'; there are" + known);
  }
  if (!arguments.ranks.empty()) {
    tell_scale(arguments.ranks);
    return 0;
  }
  const auto started = std::chrono::steady_clock::now();
  std::uint64_t events = 0, restarts = 0;
  std::chrono::milliseconds simulated{0};
  for (auto seed = arguments.first; seed < arguments.first + arguments.seeds; ++seed) {
    const auto options = options_of(seed, arguments);
    const auto outcome = simulate(options);
    for (const auto& line : outcome.log) std::printf("%s\n", line.c_str());
    events += outcome.events;
    restarts += static_cast<std::uint64_t>(outcome.starts - 1);
    simulated += outcome.time;
    if (outcome.violation) {
      tell(seed, options, outcome, arguments);
      return 1;
    }
  }
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - started;
  std::printf(
      "%llu seeds from %llu: no promise broken; %.1f h simulated in %.1f s, %llu events, %llu jobs begun anew\n",
      static_cast<unsigned long long>(arguments.seeds), static_cast<unsigned long long>(arguments.first),
      static_cast<double>(simulated.count()) / 3'600'000, spent.count(), static_cast<unsigned long long>(events),
      static_cast<unsigned long long>(restarts));
  return 0;
}
