// The least that a job does: a model of two numbers, one step. What `./dev bench start` times, from the command to
// "first step".
#include <cstdio>

#include "troupe/troupe.hpp"

namespace bench_start {

int run(int argc, char** argv) {
  return troupe::main(
      argc, argv,
      [](troupe::Rank& rank) {
        auto model = rank.distribute(torch::nn::Linear(1, 1));
        auto optimizer = rank.make_optimizer(*model);
        rank.backward(troupe::Loss(model->forward(torch::ones({1, 1})).sum()), 1, 1);
        (void)rank.step(*optimizer);
        if (rank.is_main()) std::printf("first step\n"), std::fflush(stdout);
      },
      [](troupe::Config& config) { config.save_every = -1; });
}

}  // namespace bench_start
