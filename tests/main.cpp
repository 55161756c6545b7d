#include <ATen/Parallel.h>

int run_tests(int argc, char** argv);

int main(int argc, char** argv) {
  at::set_num_threads(1);  // ranks share cores
  return run_tests(argc, argv);
}
