// Jobs, one a line of JSON on standard input; for each a line of JSON on standard output: the verdict and the
// milliseconds. dimensions.py draws them. `--processes`: each rank is a process; `--log`: show what the ranks print;
// `--defaults`: the job that nothing was said of; `--rank FOLDER`: be one of these processes.
#include <ATen/Parallel.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "tests/differential/compare.hpp"
#include "tests/differential/processes.hpp"

using namespace troupe::differential;

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--defaults") == 0) {
    std::cout << nlohmann::ordered_json(nlohmann::json(Job())).dump() << "\n";
    return 0;
  }
  if (argc > 2 && std::strcmp(argv[1], "--rank") == 0) return rank_main(argv[2]);
  at::set_num_threads(1);
  // The ranks' own lines go nowhere; ours to where they went.
  FILE* answers = ::fdopen(::dup(1), "w");
  bool loud = false;
  auto ranks = Ranks::threads;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--log") == 0) loud = true;
    if (std::strcmp(argv[i], "--processes") == 0) ranks = Ranks::processes;
  }
  for (FILE* stream : {stdout, stderr}) {
    if (!loud && std::freopen("/dev/null", "w", stream) == nullptr) return 70;
  }
  for (std::string line; std::getline(std::cin, line);) {
    const auto started = std::chrono::steady_clock::now();
    std::string text;
    try {
      text = verdict(nlohmann::json::parse(line).get<Job>(), ranks);
    } catch (const std::exception& error) {
      text = std::string("threw: ") + error.what();
    }
    const auto ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - started).count();
    std::fprintf(answers, "%s\n",
                 nlohmann::json({{"verdict", text}, {"ms", ms}})
                     .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
                     .c_str());
    std::fflush(answers);
  }
  return 0;
}
