// The jobs on one rank by LibTorch alone: a loop as one writes it without Troupe, with the fused AdamW, resnet with the
// fused SGD. bench/README.md has the values and the lines.
//
//   echo "block 15" | build/release/bench/bench_bare_steps --batch 16 --job mlp [--core 1]
#include <cstdlib>
#include <iostream>
#include <string>

#include <ATen/Parallel.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>

#include "bench/processes.hpp"
#include "bench/step_job.hpp"

namespace bench_bare_steps {

int run(int argc, char** argv) {
  if ((argc != 5 && argc != 7) || std::string(argv[1]) != "--batch" || std::atoi(argv[2]) < 1 ||
      std::string(argv[3]) != "--job" || (argc == 7 && std::string(argv[5]) != "--core")) {
    std::fprintf(
        stderr,
        "usage: bench_bare_steps --batch SAMPLES --job mlp|gpt|resnet [--core N], then lines as in bench/README.md\n");
    return 2;
  }
  pin_to_core(argc == 7 ? std::atoi(argv[6]) : 0);
  at::set_num_threads(1);
  const auto job = step_job::make_job(argv[4], 0, std::atoi(argv[2]), 8);
  std::vector<at::Tensor> parameters, gradients, first, second, steps_done;
  for (auto& parameter : job.model->parameters()) {
    parameters.push_back(parameter);
    gradients.push_back(parameter.mutable_grad() = torch::zeros_like(parameter));
    first.push_back(torch::zeros_like(parameter));
    second.push_back(torch::zeros_like(parameter));
    steps_done.push_back(torch::zeros({}));
  }
  std::printf("ready\n"), std::fflush(stdout);
  const bool sgd = std::string(argv[4]) == "resnet";
  std::size_t steps = 0;
  for (std::string line; std::getline(std::cin, line);) {
    const auto space = line.find(' ');
    const auto verb = line.substr(0, space),
               argument = space == std::string::npos ? std::string() : line.substr(space + 1);
    if (verb == "block") {
      std::vector<double> step_ms;
      for (int i = 0; i < std::atoi(argument.c_str()); ++i, ++steps) {
        const auto begin = std::chrono::steady_clock::now();
        for (auto& gradient : gradients) gradient.zero_();
        job.loss(steps).backward();
        torch::NoGradGuard no_grad;
        for (auto& step : steps_done) step += 1;
        if (sgd) {
          at::_fused_sgd_(parameters, gradients, first, 0, 0.9, 1e-2, 0, false, false, steps == 0);
        } else {
          at::_fused_adamw_(parameters, gradients, first, second, {}, steps_done, 1e-3, 0.9, 0.999, 0.01, 1e-8, false,
                            false);
        }
        step_ms.push_back(step_job::ms_since(begin));
      }
      step_job::print("step_ms", step_ms);
    } else if (verb == "weights") {
      step_job::write_raw(argument, job.model->parameters());
      std::printf("weights %s\n", argument.c_str());
    } else if (verb == "quit") {
      break;
    }
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace bench_bare_steps
