// The settings of a process for GPUs, which a CPU takes and does not use.
#include <ATen/Context.h>

#include "launch/loop/rank.hpp"
#include "tests/catch.hpp"
#include "troupe/troupe.hpp"

using namespace troupe;

TEST_CASE("[L03] tf32 and cudnn_benchmark are LibTorch's switches, and off by default") {
  auto& context = at::globalContext();
  const auto run = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"program", "--save_every", "-1", "--run_dir", ""});
    std::vector<char*> arguments;
    for (auto& word : words) arguments.push_back(word.data());
    std::pair<bool, bool> set;
    CHECK(troupe::main(static_cast<int>(arguments.size()), arguments.data(), [&](Rank&) {
            set = {context.allowTF32CuBLAS(), context.benchmarkCuDNN()};
          }) == 0);
    return set;
  };
  CHECK((run({}) == std::pair(false, false)));
  CHECK((run({"--tf32"}) == std::pair(true, false)));
  context.setAllowTF32CuBLAS(false);
  CHECK((run({"--cudnn_benchmark"}) == std::pair(false, true)));
  context.setBenchmarkCuDNN(false);
}
