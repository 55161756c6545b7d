#include "launch/network/refusals.hpp"

#include "tests/catch.hpp"

using namespace troupe;
using namespace std::chrono_literals;

TEST_CASE("[L08] a flood of refusals leaves few lines, and a total") {
  Refusals refusals;
  int lines = 0;
  for (int i = 0; i < 10'000; ++i) lines += refusals.count("10.0.0.9", "no certificate").empty() ? 0 : 1;
  CHECK(lines == 14);  // 1, 2, 4 ... 8192
  CHECK(refusals.count("10.0.0.9", "too slow") == "a connection from 10.0.0.9 was refused: too slow");
  CHECK(refusals.total() == 10'001);
  CHECK(refusals.summary() == "10001 connections were refused: 10000 no certificate, 1 too slow");
  for (int i = 0; i < 1000; ++i) refusals.count("a", "reason " + std::to_string(i));
  CHECK(refusals.summary().size() < 1000);
  CHECK(Refusals().summary().empty());
}

TEST_CASE("[L08] an address that fails too often is turned away until it has rested") {
  AttemptLimit limit;
  AttemptLimit::Time now{};
  for (int i = 0; i < 99; ++i) limit.failed("a", now);
  CHECK(limit.may_try("a", now));
  limit.failed("a", now);
  CHECK_FALSE(limit.may_try("a", now));
  CHECK(limit.may_try("b", now));
  CHECK_FALSE(limit.may_try("a", now + 10ms));
  CHECK(limit.may_try("a", now + 100ms));
  CHECK(limit.may_try("a", now + 10s));
  // A million addresses do not fill the memory, and do not push out the worst.
  for (int i = 0; i < 100; ++i) limit.failed("worst", now + 10s);
  for (int i = 0; i < 3000; ++i) limit.failed(std::to_string(i), now + 10s);
  CHECK_FALSE(limit.may_try("worst", now + 10s));
}
