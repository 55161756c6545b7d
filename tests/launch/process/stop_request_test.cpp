#include "launch/process/stop_request.hpp"

#include <csignal>

#include "tests/catch.hpp"

using namespace troupe;
using namespace std::chrono_literals;
using Meaning = StopRequest::Meaning;

TEST_CASE("[L06] the same signal within a second of the first is one request; later, or another one, asks for more") {
  const auto begin = StopRequest::Clock::time_point(100h);
  StopRequest twice;  // timeout: to the process, and to its group
  CHECK(twice.add(SIGTERM, begin) == Meaning::finish);
  CHECK(twice.add(SIGTERM, begin) == Meaning::same);
  CHECK(twice.add(SIGTERM, begin + 999ms) == Meaning::same);
  CHECK(twice.add(SIGTERM, begin + 1s) == Meaning::at_once);
  StopRequest other;
  CHECK(other.add(SIGINT, begin) == Meaning::finish);
  CHECK(other.add(SIGTERM, begin + 1ms) == Meaning::at_once);
}
