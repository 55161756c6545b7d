// Numbers of a run, advice, charts, and records as they are read: what `troupe report` is made of.
#include <cmath>

#include <nlohmann/json.hpp>

#include "launch/observe/advice.hpp"
#include "launch/observe/run_folder.hpp"
#include "launch/observe/run_statistics.hpp"
#include "launch/observe/svg_chart.hpp"
#include "tests/catch.hpp"
#include "tests/support/count_of.hpp"
#include "tests/support/run_records.hpp"

using namespace troupe;
using testing::change;
using testing::interval;
using testing::start_of;

namespace {

// Two ranks that have nothing to complain about.
RunNumbers healthy() {
  RunNumbers n;
  n.world_size = 2;
  n.intervals = 10;
  n.steps = 100;
  n.step_ms = 100;
  n.samples_per_second = 1000;
  n.data = 0.01;
  n.forward = 0.3;
  n.backward = 0.6;
  n.exposed = 0.05;
  n.overlap = 0.9;
  n.reduce_ms = 20;
  n.buckets = 4;
  n.bucket_mib = 25;
  n.ranks = {{1, 30, 60}, {1, 30, 60}};
  n.hosts = {"h0", "h1"};
  n.wall_s = 100;
  n.has_split = true;
  return n;
}

const Advice* about(const std::vector<Advice>& advice, const std::string& subject) {
  const auto found = std::find_if(advice.begin(), advice.end(), [&](const Advice& a) { return a.subject == subject; });
  return found == advice.end() ? nullptr : &*found;
}

std::string finding(const RunNumbers& n, const std::string& subject, const RunNumbers* baseline = nullptr) {
  const auto advice = advise(n, baseline);
  const auto* item = about(advice, subject);
  return item == nullptr || !item->problem ? "" : item->finding;
}

std::string remedy(const RunNumbers& n, const std::string& subject) {
  const auto advice = advise(n, nullptr);
  const auto* item = about(advice, subject);
  return item == nullptr ? "" : item->remedy;
}

}  // namespace

TEST_CASE(
    "[T08] a run that is in order gets no advice, and the scaling that it may have at best is said beside the usual "
    "one") {
  const auto advice = advise(healthy(), nullptr);
  for (const auto& item : advice) CHECK_FALSE(item.problem);
  const auto* scaling = about(advice, "scaling");
  REQUIRE(scaling != nullptr);
  CHECK(scaling->finding ==
        "Scaling efficiency with 2 ranks is at best 95 % (the share of a step without exposed communication); 90-95 % "
        "is usual.");
}

TEST_CASE(
    "[T08] communication above 30 % of a step is said, gathers within forward and backward counted, and on one rank "
    "never") {
  auto n = healthy();
  n.exposed = 0.30;
  CHECK(finding(n, "communication").empty());
  n.collectives = 0.02;
  CHECK_THAT(finding(n, "communication"),
             Catch::Contains("waits for communication 32 % of a step, more than 30 %") &&
                 Catch::Contains("at least 90 % of the reducer's 20.0 ms in collectives is hidden"));
  n.imbalance = 0.5;
  CHECK_THAT(remedy(n, "communication"), Catch::StartsWith("make the ranks equal first"));
  n.world_size = 1;
  CHECK(finding(n, "communication").empty());
}

TEST_CASE("[T08] a starving loader, an unequal rank, small buckets and a single bucket are named with their numbers") {
  auto n = healthy();
  n.data = 0.4;
  n.loader_queue = 0.1;
  CHECK_THAT(finding(n, "loader"), Catch::Contains("40 % of a step") && Catch::Contains("0.1 batches are ready"));
  CHECK_THAT(remedy(n, "loader"), Catch::Contains("num_workers") && !Catch::Contains("whatever num_workers is"));
  n.loader_queue = 0;  // small data in memory: the training thread makes each batch
  CHECK(finding(n, "loader").empty());

  n = healthy();
  n.ranks = {{1, 30, 60}, {1, 90, 60}};
  n.imbalance = 0.25;
  CHECK_THAT(finding(n, "ranks"), Catch::Contains("Rank 1 (h1) takes 151.0 ms") &&
                                      Catch::Contains("25 % more than the mean rank") &&
                                      Catch::Contains("most of the difference in forward"));
  n.hosts.clear();
  CHECK_THAT(finding(n, "ranks"), Catch::StartsWith("Rank 1 takes"));

  n = healthy();
  n.buckets = 40;
  n.bucket_mib = 0.5;
  CHECK_THAT(finding(n, "buckets"), Catch::Contains("40 buckets of 0.50 MiB"));
  n.bucket_mib = 25;
  CHECK(finding(n, "buckets").empty());
  n.buckets = 1;
  n.bucket_mib = 20;
  n.exposed = 0.2;
  CHECK_THAT(finding(n, "buckets"), Catch::Contains("All gradients (20.0 MiB) are one bucket"));
  CHECK_THAT(remedy(n, "buckets"), Catch::Contains("to 5.0 say"));
}

TEST_CASE("[T08] saving, validation, skipped steps and failures are judged, and the costliest comes first") {
  auto n = healthy();
  n.checkpoint = 0.06;
  n.validation = 0.3;
  n.skipped = 0.02;
  n.exposed = 0.5;
  n.membership_changes = 2;
  n.stalled_s = 10;
  std::vector<std::string> subjects;
  for (const auto& item : advise(n, nullptr)) {
    if (item.problem) subjects.push_back(item.subject);
  }
  CHECK(subjects ==
        std::vector<std::string>{"communication", "validation", "failures", "checkpoints", "skipped steps", "scaling"});
  n.stalled_s = 1;
  const auto advice = advise(n, nullptr);
  REQUIRE(about(advice, "failures") != nullptr);
  CHECK_FALSE(about(advice, "failures")->problem);
  CHECK_THAT(about(advice, "failures")->finding,
             Catch::Contains("changed 2 times") && Catch::Contains("stood still for 1.0 s, 1.0 % of the run"));
}

TEST_CASE(
    "[T08] scaling efficiency is measured against a run with fewer ranks, and its usual range falls from 2 ranks to "
    "8") {
  CHECK(usual_efficiency(2).first == Approx(0.90));
  CHECK(usual_efficiency(2).second == Approx(0.95));
  CHECK(usual_efficiency(4).first == Approx(0.85));
  CHECK(usual_efficiency(8).first == Approx(0.80));
  CHECK(usual_efficiency(8).second == Approx(0.90));
  CHECK(usual_efficiency(1024) == usual_efficiency(8));
  auto one = healthy(), two = healthy();
  one.world_size = 1;
  one.samples_per_second = 800;
  two.samples_per_second = 1200;
  const auto efficiency = scaling_efficiency(two, &one);
  REQUIRE(efficiency);
  CHECK(efficiency->measured);
  CHECK(efficiency->value == Approx(0.75));
  CHECK_THAT(finding(two, "scaling", &one),
             Catch::Contains("with 2 ranks is 75 % (measured against the run with 1); 90-95 % is usual"));
  one.intervals = 3;
  one.samples_per_second = 400;
  const auto unsure = advise(two, &one);
  REQUIRE(about(unsure, "scaling") != nullptr);
  CHECK_THAT(about(unsure, "scaling")->finding,
             Catch::Contains("with 2 ranks is 150 %") &&
                 Catch::EndsWith("there are too few log intervals to say how sure this is."));
  CHECK_FALSE(about(unsure, "scaling")->problem);
  CHECK_THAT(about(unsure, "scaling")->remedy, Catch::Contains("log_interval"));
  one.samples_per_second = 4000;  // no less unsure if it looks poor
  CHECK(finding(two, "scaling", &one).empty());
  CHECK_FALSE(scaling_efficiency(one, nullptr));
  CHECK_FALSE(scaling_efficiency(two, &two));
  CHECK(advise(RunNumbers(), nullptr).front().subject == "records");
}

TEST_CASE("[T08] numbers are means by time, without warm-up, stand-stills and other world sizes") {
  std::vector<MetricRecord> records{start_of(0, 1), change(0, 1, "begins", 0)};
  records.push_back(interval(10, 9.0, 90));  // warm-up
  records.push_back(interval(20, 0.1, 10));  // 1 s of 10 steps
  records.push_back(interval(50, 0.1, 50));  // 3 s of 30 steps
  records.push_back(change(55, 2, "1 rank replaced", 1500));
  records.push_back(interval(60, 5.0, 80));  // the job stood still
  records.push_back(interval(70, 0.1, 10));
  const auto n = numbers_of(records);
  CHECK(n.world_size == 2);
  CHECK(n.intervals == 3);
  CHECK(n.left_out == 2);
  CHECK(n.steps == 70);
  CHECK(n.step_ms == Approx(100));
  CHECK(n.exposed == Approx((1 * 0.10 + 3 * 0.50 + 1 * 0.10) / 5));
  CHECK(n.forward == Approx(0.4));
  CHECK(n.rest == Approx(1 - n.forward - n.exposed));
  CHECK(n.membership_changes == 1);
  CHECK(n.stalled_s == Approx(1.5));
  CHECK(n.wall_s == Approx(70));
  CHECK(n.hosts == std::vector<std::string>{"h0", "h1"});
  REQUIRE(n.ranks.size() == 2);
  CHECK(n.ranks[1].backward_ms == Approx(3));
  CHECK(n.imbalance == 0);
  records.back().ranks[1] = {1, 2, 13};
  CHECK(numbers_of(records).ranks[1].backward_ms == Approx(5));  // 10 steps of 50
  CHECK(numbers_of(records).imbalance == Approx(8.0 / 7 - 1));
  MetricRecord end;
  end.kind = MetricRecord::Kind::end;
  end.step = 74;  // four steps after the last log line
  records.push_back(end);
  CHECK(numbers_of(records).steps == 74);

  records.push_back(interval(80, 0.2, 0, 1));  // only the last world size counts
  CHECK(numbers_of(records).world_size == 1);
  CHECK(numbers_of(records).step_ms == Approx(200));
  CHECK(numbers_of({records[0], records[2]}).intervals == 1);  // nothing better than a warm-up
  CHECK(numbers_of({}).intervals == 0);
  MetricRecord old;  // before there was a split
  old.step = 3;
  old.add("time_metrics/end_to_end(s)", 0.5);
  CHECK_FALSE(numbers_of({old}).has_split);
  CHECK(numbers_of({old}).step_ms == Approx(500));
}

TEST_CASE(
    "[T08] a chart leaves gaps where there are no numbers, thins out long lines, and says where there is nothing") {
  const double nan = std::nan("");
  CHECK_THAT(svg_chart({"Loss", "step", "", {{"loss", {{1, nan}, {2, nan}}, false}}, {}, false}),
             Catch::Contains("no value yet"));
  CHECK(
      testing::count_of(svg_chart({"", "", "", {{"a", {{1, 1}, {2, 2}, {3, nan}, {4, 4}, {5, 5}}, false}}, {}, false}),
                        "<polyline") == 2);
  Chart flat{"", "", "", {{"a", {{1, 7}, {2, 7}}, false}}, {}, false};
  CHECK(svg_chart(flat).find("nan") == std::string::npos);
  Chart tall{"", "", "", {{"a", {{1, 1e300}, {2, 1}, {3, -1e300}}, false}}, {}, false};
  CHECK_THAT(svg_chart(tall), !Catch::Contains("inf") && !Catch::Contains("nan"));
  Chart lengthy{"", "", "", {{"a", {}, false}}, {}, false};
  for (int i = 0; i < 100'000; ++i) lengthy.lines[0].points.emplace_back(i, i == 77'777 ? 1000 : i % 7);
  const auto svg = svg_chart(lengthy);
  CHECK(svg.size() < 40'000);
  CHECK_THAT(svg, Catch::Contains(",12.0 "));  // the peak is drawn, at the top
  CHECK(short_number(0.012345) == "0.012");
  CHECK(short_number(12345.6) == "12346");
  CHECK(short_number(2) == "2");
  CHECK(short_number(nan) == "-");
  CHECK(duration_text(0.25) == "250 ms");
  CHECK(duration_text(250) == "4 min 10 s");
  CHECK(duration_text(12'000) == "3 h 20 min");
}

TEST_CASE("[T08] a chart says its values where it is pointed at, in areas whose number has a bound") {
  const double nan = std::nan("");
  const auto few = svg_chart(
      {"Loss",
       "step",
       "",
       {{"training <b>", {{10, 0.5}, {15, nan}, {20, 0.25}, {30, 0.5}}, false}, {"held out", {{20, 0.75}}, true}},
       {},
       false});
  CHECK(testing::count_of(few, "class='hit'") == 3);  // nothing at 15
  CHECK_THAT(few, Catch::Contains("<title>step 10\ntraining &lt;b&gt;: 0.5</title>") &&
                      Catch::Contains("<title>step 20\ntraining &lt;b&gt;: 0.25\nheld out: 0.75</title>"));
  // The areas meet half-way between the points, and reach to the ends.
  CHECK_THAT(few, Catch::Contains("class='hit' d='M72.0 12.0H239.0V204.0H72.0z'") &&
                      Catch::Contains("class='hit' d='M239.0 12.0H573.0V204.0H239.0z'"));

  Chart lengthy{"", "step", "", {{"a", {}, false}}, {}, false};
  for (int i = 0; i < 8000; ++i) lengthy.lines[0].points.emplace_back(i, i % 100);
  const auto many = svg_chart(lengthy);
  CHECK(testing::count_of(many, "class='hit'") == 80);
  CHECK_THAT(many, Catch::Contains("<title>step 0 to 99\na: 49.5 (0 to 99)</title>"));
}

TEST_CASE(
    "[T08] a record of an event, an end and the ranks' times reads back as it was, and what a later troupe may write "
    "is none") {
  auto record = change(7, 3, "why", 12);
  record.cause = "rank 1 died";
  CHECK(to_json(record_from_json(to_json(record))) == to_json(record));
  record = interval(4, 0.5, 3);
  CHECK(to_json(record_from_json(to_json(record))) == to_json(record));
  record.kind = MetricRecord::Kind::end;
  record.values.clear();
  record.ranks.clear();
  record.text = "rank 1: it broke";
  record.signal = 15;
  CHECK(record_from_json(to_json(record)).text == "rank 1: it broke");
  CHECK(record_from_json(to_json(record)).signal == 15);
  const auto changed = [](const char* key, const nlohmann::json& value) {
    auto entry = nlohmann::json::parse(to_json(interval(4, 0.5, 3)));
    entry[key] = value;
    return record_from_json(entry.dump()).step;
  };
  CHECK(changed("epoch", 1) == 4);
  CHECK(changed("kind", "later") == -1);
  CHECK(changed("schema", 2) == -1);
  CHECK(changed("ranks", nlohmann::json::array({"x"})) == -1);
}

TEST_CASE("[T08] a start voids what was done again, and another run's records in the same folder") {
  RunLines lines;
  const auto add = [&](const MetricRecord& record) { lines.add(to_json(record)); };
  add(start_of(0, 1));
  add(interval(90, 0.1, 1));
  add(start_of(0, 1));  // another run
  add(change(0, 1, "begins", 0));
  add(interval(10, 0.1, 1));
  add(interval(20, 0.1, 1));
  add(change(25, 2, "replaced", 1));
  add(start_of(10, 2));  // goes on from step 10
  add(interval(20, 0.1, 2));
  std::vector<std::int64_t> steps;
  for (const auto& record : lines.records()) steps.push_back(record.step);
  CHECK(steps == std::vector<std::int64_t>{0, 0, 10, 25, 10, 20});  // the change of membership did happen
}
