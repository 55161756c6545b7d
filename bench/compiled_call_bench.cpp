// What a call of a compiled block costs beside its code alone: bench_compiled_call MODEL, which `troupe compile` made
// of bench/peer/compiled_jobs.py:empty_block, whose graph has next to nothing to compute.
//
// A JSON line, in µs, each the median over blocks of calls: `forward` and `backward` by CompiledGraph, as a node of
// autograd with its checks; `forward_code` and `backward_code`: AOTInductor's runner with the same tensors.
#include <ATen/Parallel.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "bench/step_job.hpp"
#include "launch/compiled/compiled_file.hpp"
#include "launch/compiled/compiled_graph.hpp"

namespace bench_compiled_call {
namespace {

constexpr int kCalls = 200, kBlocks = 31;

template <class Call>
double us_of(Call call) {
  std::vector<double> found;
  for (int block = 0; block <= kBlocks; ++block) {
    double ms = 0;
    for (int i = 0; i < kCalls; ++i) ms += call();
    if (block > 0) found.push_back(1e3 * ms / kCalls);
  }
  std::nth_element(found.begin(), found.begin() + kBlocks / 2, found.end());
  return found[kBlocks / 2];
}

template <class Work>
double ms_of(Work work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return step_job::ms_since(begin);
}

}  // namespace

int run(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: bench_compiled_call MODEL\n"), 2;
  at::set_num_threads(1);
  const troupe::CompiledFile file(argv[1]);
  // The block's: the graph with the most inputs.
  const auto& graphs = file.manifest().graphs;
  const auto number = static_cast<std::size_t>(
      std::distance(graphs.begin(), std::max_element(graphs.begin(), graphs.end(), [](const auto& a, const auto& b) {
                      return a.inputs.size() < b.inputs.size();
                    })));
  const auto& form = graphs[number];
  std::vector<at::Tensor> inputs;
  for (const auto& input : form.inputs) {
    std::vector<std::int64_t> sizes;
    for (const auto& size : input.sizes) sizes.push_back(size.symbols.empty() ? size.factor : 4);
    inputs.push_back(at::ones(sizes, input.dtype));
  }
  for (const auto i : form.gradients) inputs[i].requires_grad_();
  const std::vector<std::string> names(inputs.size(), "an input");
  const troupe::CompiledGraph graph(file, number);
  torch::inductor::AOTIModelContainerRunnerCpu forward(
      file.section_in_memory(std::to_string(number) + ".forward")->path(), 1, true);
  torch::inductor::AOTIModelContainerRunnerCpu backward(
      file.section_in_memory(std::to_string(number) + ".backward")->path(), 1, true);

  std::vector<at::Tensor> plain;
  plain.reserve(inputs.size());
  for (const auto& input : inputs) plain.push_back(input.detach());
  std::vector<at::Tensor> results;
  const double forward_us = us_of([&] { return ms_of([&] { results = graph.run(inputs, names, false, {}); }); });
  const auto tangent = at::ones_like(results[0]);
  const double backward_us = us_of([&] {
    results = graph.run(inputs, names, false, {});
    for (auto& input : inputs) input.mutable_grad().reset();
    return ms_of([&] { results[0].backward(tangent); });
  });
  const at::NoGradGuard no_grad;
  const double forward_code_us = us_of([&] { return ms_of([&] { results = forward.run(plain); }); });
  const double backward_code_us = us_of([&] {
    std::vector<at::Tensor> saved;
    for (const auto& s : form.saved) saved.push_back(s.result ? results.at(s.index) : plain[s.index]);
    saved.push_back(tangent);
    return ms_of([&] { (void)backward.boxed_run(std::move(saved)); });
  });
  std::printf(R"({"inputs": %zu, "forward": %.2f, "forward_code": %.2f, "backward": %.2f, "backward_code": %.2f})"
              "\n",
              inputs.size(), forward_us, forward_code_us, backward_us, backward_code_us);
  return 0;
}

}  // namespace bench_compiled_call
