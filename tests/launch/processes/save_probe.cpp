// Saves a small state: save_probe DIRECTORY STEP KEEP_LAST. A test kills it on the way.
#include <cstdio>
#include <cstdlib>

#include "tests/support/training_state.hpp"

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    troupe::testing::WholeStateWriter writer(argv[1], std::atol(argv[3]));
    writer.save(troupe::testing::small_state(std::atol(argv[2])), false);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
