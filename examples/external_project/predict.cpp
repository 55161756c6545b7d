// Uses what train.cpp has trained, in a program without ranks.
//
//   build/predict runs/latest/checkpoints 0.5
//
// expect: what the model says, and sin(3 x): the nearer, the longer it has trained.
#include "wave.hpp"

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) try {
  if (argc != 3) return std::fputs("usage: predict CHECKPOINT X\n", stderr), 2;
  troupe::Config config;
  declare(config);
  auto net = model(config);
  troupe::load_weights(net, argv[1]);
  net->eval();
  torch::NoGradGuard no_grad;
  const double x = std::atof(argv[2]);
  std::printf("predicted %.3f, right %.3f\n", net->forward(torch::tensor({{x}}, torch::kFloat)).item<double>(),
              std::sin(3 * x));
  return 0;
} catch (const troupe::Error& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return troupe::exit_code(error.code());
}
