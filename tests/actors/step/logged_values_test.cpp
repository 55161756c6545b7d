#include "actors/step/logged_values.hpp"

#include <cmath>

#include "actors/compute/metric_log.hpp"
#include "actors/step/vote.hpp"
#include "tests/catch.hpp"

using namespace troupe;

namespace {

LoggedValues some() {
  LoggedValues logged;
  logged.add("mean", 2, Reduce::mean, 3);
  logged.add("mean", 6, Reduce::mean, 1);
  logged.add("sum", 2, Reduce::sum, 10);
  logged.add("sum", 5, Reduce::sum);
  logged.add("min", 2, Reduce::min);
  logged.add("min", -5, Reduce::min);
  logged.add("max", 2, Reduce::max);
  logged.add("max", 5, Reduce::max);
  logged.add("nothing", 7, Reduce::sum, 0);
  return logged;
}

}  // namespace

TEST_CASE("[U04] logged values are reduced by their weights, and travel as bytes") {
  const std::vector<std::pair<std::string, double>> expected{{"max", 5}, {"mean", 3}, {"min", -5}, {"sum", 7}};
  CHECK(some().results() == expected);
  CHECK(some().value("mean") == 3);
  CHECK_FALSE(some().value("nothing"));
  const auto back = LoggedValues::decode(some().encode());
  CHECK(back.results() == expected);
  auto twice = some();
  twice.add(back);
  CHECK(twice.value("mean") == 3);
  CHECK(twice.value("sum") == 14);
  CHECK(LoggedValues().encode().empty());
  LoggedValues with_nan;
  with_nan.add("x", std::nan(""), Reduce::max);
  with_nan.add("x", 1, Reduce::max);
  CHECK(std::isnan(*with_nan.value("x")));
  const auto bytes = some().encode();
  for (std::size_t cut = 1; cut < bytes.size(); ++cut)
    CHECK_THROWS_AS(LoggedValues::decode(std::string_view(bytes).substr(0, cut)), Error);
  LoggedValues many;
  for (std::size_t i = 0; i < LoggedValues::kMostNames; ++i) many.add(std::to_string(i), 1, Reduce::sum);
  CHECK_THROWS_WITH(many.add("one more", 1, Reduce::sum), Catch::Contains("one metric too many, 200 are allowed"));
}

TEST_CASE("[U04] votes carry what ranks logged, and a decision has it of all") {
  std::string fixed, behind;
  for (int r = 0; r < 3; ++r) {
    Vote vote;
    vote.ranks = 3;
    vote.samples = 1;
    vote.used = {true, false};
    LoggedValues logged;
    if (r != 1) logged.add("x", r, Reduce::mean);
    vote.logged_bytes = static_cast<std::uint32_t>(logged.encode().size());
    std::string bytes(vote_bytes(2), '\0');
    encode_vote(vote, {reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size()});
    fixed += bytes;
    behind += logged.encode();
  }
  const auto votes = decode_votes(fixed + behind, 2);
  REQUIRE(votes.size() == 3);
  CHECK(decide(votes, std::vector<std::string>{"a", "b"}, {}).logged.value("x") == 1);
  CHECK_THROWS_AS(decode_votes(fixed + behind.substr(1), 2), Error);
}

TEST_CASE("[U04] a value belongs to its micro-batch and is given up with its step, or waits between two of them") {
  MetricLog log;
  log.add("x", 1.0, Reduce::mean, {});  // before the loop
  log.begin_micro_batch();
  log.add("x", 4.0, Reduce::mean, {});
  log.begin_micro_batch();  // again: a rank was lost within the forward
  log.add("x", 4.0, Reduce::mean, {});
  log.end_micro_batch(2);
  CHECK(log.of_step().value("x") == 3);  // (1 + 2 * 4) / 3
  log.give_up_step();
  CHECK(log.of_step().value("x") == 1);
  log.begin_micro_batch();
  log.add("x", 4.0, Reduce::mean, {});
  log.add("y", 4.0, Reduce::sum, {});
  log.end_micro_batch(0);  // a batch that the rank repeats
  CHECK(log.of_step().value("x") == 1);
  CHECK_FALSE(log.of_step().value("y"));
  log.end_step();
  CHECK(log.of_step().empty());
  log.add("x", 5.0, Reduce::mean, {});
  log.begin_micro_batch();
  log.end_micro_batch(1);
  CHECK(log.of_step().value("x") == 5);
  MetricLog own_batches;  // a loop that takes no batches from Troupe
  own_batches.add("x", 4.0, Reduce::mean, {});
  own_batches.give_up_step();
  CHECK(own_batches.of_step().empty());
  own_batches.add("x", 4.0, Reduce::mean, {});
  own_batches.end_micro_batch(1);
  CHECK(own_batches.of_step().value("x") == 4);
}
