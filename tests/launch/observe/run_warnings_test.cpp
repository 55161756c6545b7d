// Warnings of a run while it trains.
#include <cmath>
#include <functional>
#include <limits>

#include "launch/observe/run_warnings.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_records.hpp"

using namespace troupe;
using testing::change;
using testing::start_of;

namespace {

// Intervals of 10 steps of `seconds` each, one after the other; `change` makes them what they are to be warned of for.
class Intervals {
 public:
  explicit Intervals(double seconds) : seconds_(seconds) {}
  MetricRecord next(const std::function<void(MetricRecord&)>& change = {}) {
    MetricRecord record;
    record.steps_from = step_;
    record.step = step_ += 10;
    record.add("time_metrics/end_to_end(s)", seconds_);
    record.add("world_size", 2);
    record.ranks = {{1, 30, 60}, {1, 30, 60}};
    if (change) change(record);
    return record;
  }

 private:
  double seconds_;
  std::int64_t step_ = 0;
};

std::vector<std::string> warnings_of(RunWarnings& warnings, Intervals& run, int intervals,
                                     const std::function<void(MetricRecord&)>& change = {}) {
  std::vector<std::string> all;
  for (int i = 0; i < intervals; ++i) {
    for (auto& line : warnings.add(run.next(change))) all.push_back(std::move(line));
  }
  return all;
}

}  // namespace

TEST_CASE(
    "[T08] a run warns while it trains of communication, a slow loader and unequal ranks, once each, with the remedy") {
  RunWarnings warnings;
  Intervals run(0.3);  // 3 s an interval
  (void)warnings.add(start_of(0, 1));
  CHECK(warnings_of(warnings, run, 20).empty());

  const auto communication = warnings_of(warnings, run, 20, [](MetricRecord& record) {
    record.add("time_metrics/exposed_communication(%)", 25);
    record.add("time_metrics/collectives(%)", 20);
  });
  REQUIRE(communication.size() == 1);
  CHECK_THAT(communication[0],
             Catch::StartsWith("warning: Compute waits for communication ") && Catch::Contains("more than 30 %") &&
                 Catch::Contains("; try: let each rank do more between two reductions") && !Catch::Contains(".; try"));

  const auto loader = warnings_of(warnings, run, 20, [](MetricRecord& record) {
    record.add("time_metrics/data_loading(%)", 40);
    record.add("queue/loader(batches)", 0.1);
  });
  REQUIRE(loader.size() == 1);
  CHECK_THAT(loader[0], Catch::Contains("The loader is too slow") && Catch::Contains("num_workers, prefetch"));

  const auto ranks = warnings_of(warnings, run, 20, [](MetricRecord& record) { record.ranks[1].forward_ms = 130; });
  REQUIRE(ranks.size() == 1);
  CHECK_THAT(ranks[0], Catch::Contains("Rank 1 takes") && Catch::Contains("most of the difference in forward") &&
                           Catch::Contains("look for other work, heat"));
}

TEST_CASE("[U04] a run warns of a metric of the program's own that is not finite, once, from its first record on") {
  RunWarnings warnings;
  MetricRecord record;
  record.step = 10;
  record.own = {{"good", 1.0}, {"ratio", std::nan("")}};
  CHECK(warnings.add(record) == std::vector<std::string>{"warning: the program's metric 'ratio' is not finite at step "
                                                         "10; the records have null"});
  CHECK(warnings.add(record).empty());
  record.kind = MetricRecord::Kind::validation;
  record.own = {{"validation_metrics/ratio", std::numeric_limits<double>::infinity()}};
  CHECK(warnings.add(record).size() == 1);
}

TEST_CASE(
    "[T08] a run warns of nothing by its warm-up, by a few seconds, or by what was before its membership changed") {
  const auto waits = [](MetricRecord& record) { record.add("time_metrics/exposed_communication(%)", 60); };
  {  // too short, however many intervals
    RunWarnings warnings;
    Intervals run(0.01);
    (void)warnings.add(start_of(0, 1));
    CHECK(warnings_of(warnings, run, 40, waits).empty());
  }
  {  // the first interval is left out
    RunWarnings warnings;
    Intervals run(0.3);
    (void)warnings.add(start_of(0, 1));
    CHECK(warnings_of(warnings, run, 1, waits).empty());
    CHECK(warnings_of(warnings, run, 5).empty());
    CHECK(warnings_of(warnings, run, 40, waits).size() == 1);
  }
  {
    RunWarnings warnings;
    Intervals run(1);
    (void)warnings.add(start_of(0, 1));
    CHECK(warnings_of(warnings, run, 3, waits).empty());
    (void)warnings.add(change(30, 2, "rank 1 is gone", 100));
    CHECK(warnings_of(warnings, run, 1, waits).empty());
    CHECK(warnings_of(warnings, run, 10).empty());
  }
}
