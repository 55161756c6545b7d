// Catch2 3 brings its own main (Catch2::Catch2WithMain); this file is built with Catch2 2 only.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include <ATen/Parallel.h>

int main(int argc, char** argv) {
  at::set_num_threads(1);  // ranks share cores
  return Catch::Session().run(argc, argv);
}
