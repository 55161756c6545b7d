// A job's keys as they come over a pipe.
#include "launch/network/job_keys.hpp"

#include <cstdlib>

#include "tests/fuzz/fuzz.hpp"

using namespace troupe;

TROUPE_FUZZ_TARGET(const std::uint8_t* data, std::size_t bytes) {
  const auto text = fuzz::text_of(data, bytes);
  return fuzz::try_input([&] {
    if (JobKeys::from_text(text).to_text().size() > text.size()) std::abort();
  });
}
