// Jobs with their true numerics under faults, one per seed, until one breaks a promise: ./dev simulate --numerics
// [SEEDS [FIRST]]
#include <ATen/Parallel.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>

#include "tests/simulator/arguments.hpp"
#include "tests/simulator/numerics.hpp"

using namespace troupe;
using namespace troupe::simulator;

namespace {

constexpr unsigned kDeadline_s = 180;  // of one seed

FILE* screen = stdout;
char again[256];

extern "C" void on_deadline(int) {
  [[maybe_unused]] auto written = ::write(fileno(screen), "a job hangs\n", 12);
  written = ::write(fileno(screen), again, std::char_traits<char>::length(again));
  ::_exit(1);
}

// The ranks' own lines go nowhere; ours to where they went.
void silence_ranks() {
  screen = ::fdopen(::dup(1), "w");
  for (FILE* stream : {stdout, stderr}) {
    if (std::freopen("/dev/null", "w", stream) == nullptr) refuse("/dev/null can't be opened");
  }
}

std::string numbers_of(const Arguments& arguments) {
  std::string text;
  for (const auto index : arguments.faults.value_or(std::vector<std::size_t>()))
    text += (text.empty() ? "" : ",") + std::to_string(index);
  return text.empty() ? text : " --faults " + text;
}

// False if the seed has broken a promise.
bool run_seed(std::uint64_t seed, const Arguments& arguments, NumericsOutcome& sum) {
  auto job = numerics_job_of_seed(seed);
  job.faults = chosen(arguments, seed, std::move(job.faults));
  std::snprintf(again, sizeof again, "again: ./dev simulate --numerics 1 %llu%s --log\n",
                static_cast<unsigned long long>(seed), numbers_of(arguments).c_str());
  ::alarm(kDeadline_s);
  std::string lines;
  const auto outcome = run_numerics(job, [&](const std::string& line) { lines += "  " + line + "\n"; });
  sum.generations += outcome.generations - 1;
  sum.starts += outcome.starts - 1;
  if (!outcome.violation && !arguments.log) return true;
  std::fprintf(screen, "seed %llu: %s over %s on %d ranks%s\n", static_cast<unsigned long long>(seed),
               job.strategy.c_str(), job.backend.c_str(), job.ranks,
               job.nan_step < 0 ? "" : ", with a loss that is not a number");
  for (const auto& fault : job.faults) std::fprintf(screen, "  %s\n", fault.to_string().c_str());
  std::fprintf(screen, "%s", lines.c_str());
  if (outcome.violation) std::fprintf(screen, "%s\n%s", outcome.violation->c_str(), again);
  return !outcome.violation;
}

}  // namespace

int main(int argc, char** argv) {
  const auto arguments = parse_arguments(argc, argv, 200);
  if (!arguments.plant.empty() || !arguments.ranks.empty()) refuse("--numerics goes with neither --plant nor --ranks");
  at::set_num_threads(1);
  std::signal(SIGALRM, on_deadline);
  if (!arguments.log) silence_ranks();
  const auto started = std::chrono::steady_clock::now();
  NumericsOutcome sum;
  for (auto seed = arguments.first; seed < arguments.first + arguments.seeds; ++seed) {
    if (!run_seed(seed, arguments, sum)) return std::fflush(screen), 1;
  }
  const double spent = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  std::fprintf(
      screen,
      "%llu seeds from %llu: no promise broken; %d memberships changed, %d jobs begun anew; %.1f s, %.2f seeds/s\n",
      static_cast<unsigned long long>(arguments.seeds), static_cast<unsigned long long>(arguments.first),
      sum.generations - 1, sum.starts - 1, spent, static_cast<double>(arguments.seeds) / spent);
  std::fflush(screen);
  return 0;
}
