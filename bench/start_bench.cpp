// The least that a job does: a model of two numbers, one step. What `./dev bench start` times, from the command to
// "first step".
#include <cstdio>

#include "troupe/troupe.hpp"

int main(int argc, char** argv) {
  return troupe::main(
      argc, argv,
      [](troupe::Rank& rank) {
        auto model = rank.distribute(torch::nn::Linear(1, 1));
        auto optimizer = rank.make_optimizer(*model);
        rank.backward(model->forward(torch::ones({1, 1})).sum(), 0, 1, 1);
        (void)rank.step(*optimizer);
        if (rank.is_main()) std::printf("first step\n"), std::fflush(stdout);
      },
      [](troupe::Config& config) { config.save_every = -1; });
}
