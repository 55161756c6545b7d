// Jobs, one a line of JSON on standard input; for each a line of JSON on standard output: the verdict and the
// milliseconds. dimensions.py draws them. `--processes`: each rank is a process; `--log`: show what the ranks print;
// `--reference`: the reference's outcome in place of the verdict, for beside_pytorch.py; `--defaults`: the job that
// nothing was said of; `--rank FOLDER`: be one of these processes.
#include <ATen/Parallel.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "tests/differential/compare.hpp"
#include "tests/differential/json_numbers.hpp"
#include "tests/differential/processes.hpp"
#include "tests/differential/reference.hpp"

using namespace troupe::differential;

namespace {

nlohmann::json json_of(const at::Tensor& tensor) {
  const auto values = tensor.to(at::kDouble).flatten().contiguous();
  auto list = nlohmann::json::array();
  for (std::int64_t i = 0; i < values.numel(); ++i) list.push_back(json_number(values.const_data_ptr<double>()[i]));
  return list;
}

nlohmann::json json_of(const Outcome& outcome) {
  nlohmann::json all = {
      {"steps", nlohmann::json::object()},
      {"states", nlohmann::json::object()},
      {"held_out_loss", json_number(outcome.held_out.empty() ? 0 : outcome.held_out.rbegin()->second)}};
  for (const auto& [number, step] : outcome.steps)
    all["steps"][std::to_string(number)] = {
        {"committed", step.committed},          {"loss", json_number(step.loss)},
        {"samples", json_number(step.samples)}, {"correct", json_number(step.correct)},
        {"norm", json_number(step.norm)},       {"rate", json_number(step.rate)}};
  for (const auto& [number, state] : outcome.states) {
    auto& tensors = all["states"][std::to_string(number)] = nlohmann::json::object();
    for (const auto& [name, tensor] : state) tensors[name] = json_of(tensor);
  }
  return all;
}

/// Each job's outcome as the reference has it, without a run of Troupe.
int print_references() {
  for (std::string line; std::getline(std::cin, line);) {
    nlohmann::json answer;
    try {
      const auto job = nlohmann::json::parse(line).get<Job>();
      answer = json_of(reference(job, {}));
      answer["tolerance"] = tolerance(job);
    } catch (const std::exception& error) {
      answer["error"] = error.what();
    }
    std::cout << answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n" << std::flush;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--defaults") == 0) {
    std::cout << nlohmann::ordered_json(nlohmann::json(Job())).dump() << "\n";
    return 0;
  }
  if (argc > 2 && std::strcmp(argv[1], "--rank") == 0) return rank_main(argv[2]);
  at::set_num_threads(1);
  if (argc > 1 && std::strcmp(argv[1], "--reference") == 0) return print_references();
  // What ranks print goes nowhere; our answers to where it went.
  FILE* answers = ::fdopen(::dup(1), "w");
  bool loud = false;
  auto ranks = Ranks::threads;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--log") == 0) loud = true;
    if (std::strcmp(argv[i], "--processes") == 0) ranks = Ranks::processes;
  }
  if (!loud && std::freopen("/dev/null", "w", stdout) == nullptr) return 70;
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
