// The conformance suite on a strategy of one's own: the test that such a project begins with.
//
//   build/release/examples/custom_strategy/check_strategy
//
// expect: "gossip conforms: ..." after a minute or so, exit code 0.
#include <cstdio>
#include <cstdlib>

#include "gossip.hpp"

int main(int argc, char** argv) {
  register_gossip();
  troupe::ConformanceOptions options;
  options.strategy = "gossip";
  options.loss_bound = 0.1;  // gossip's own: of one rank's fall of the loss
  if (argc > 1) options.schedules = std::atoi(argv[1]);
  const auto report = troupe::strategy_conformance(options);
  std::printf("%s\n", report.to_string().c_str());
  return report.passed() ? 0 : 1;
}
