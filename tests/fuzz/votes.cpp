// What ranks send each other about a step.
#include "actors/step/vote.hpp"

#include "tests/fuzz/fuzz.hpp"

using namespace troupe;

TROUPE_FUZZ_TARGET(const std::uint8_t* data, std::size_t bytes) {
  if (bytes < 1) return 0;
  const std::size_t parameters = data[0];
  const std::vector<std::string> names(parameters, "weight");
  return fuzz::try_input([&] {
    const auto votes = decode_votes(fuzz::text_of(data + 1, bytes - 1), parameters);
    if (!votes.empty()) (void)decide(votes, names, {data[0] % 2 == 0, data[0] % 4 < 2});
  });
}
