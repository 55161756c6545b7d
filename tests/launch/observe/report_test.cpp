// troupe report: what it makes of numbers, of damaged folders, and of jobs that were hurt.
#include <filesystem>
#include <regex>

#include <nlohmann/json.hpp>

#include "launch/observe/advice.hpp"
#include "launch/observe/run_folder.hpp"
#include "launch/observe/run_report.hpp"
#include "launch/observe/run_warnings.hpp"
#include "launch/observe/svg_chart.hpp"
#include "tests/support/count_of.hpp"
#include "tests/support/launch.hpp"

using namespace troupe;
using testing::Launch;

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

MetricRecord interval(std::int64_t step, double seconds, double exposed, int ranks = 2) {
  MetricRecord record;
  record.step = record.steps_from = step;
  record.wall_time = 1000 + static_cast<double>(step);
  record.add("loss_metrics/global_avg_loss", 1.0 / static_cast<double>(step));
  record.add("time_metrics/end_to_end(s)", seconds);
  record.add("time_metrics/exposed_communication(%)", exposed);
  record.add("time_metrics/forward(%)", 40);
  record.add("throughput(samples/s)", 100);
  record.add("skipped_steps", 1);
  record.add("world_size", ranks);
  for (int r = 0; r < ranks; ++r) record.ranks.push_back({1, 2, 3});
  return record;
}

MetricRecord start_of(std::int64_t step, std::uint64_t generation) {
  MetricRecord record;
  record.kind = MetricRecord::Kind::start;
  record.step = record.steps_from = step;
  record.wall_time = 1000 + static_cast<double>(step);
  record.generation = generation;
  return record;
}

MetricRecord change(std::int64_t step, std::uint64_t generation, const std::string& why, double stalled_ms) {
  auto record = start_of(step, generation);
  record.kind = MetricRecord::Kind::event;
  record.event = "membership";
  record.text = why;
  record.stalled_ms = stalled_ms;
  record.members = {{0, 0, "h0", false}, {1, 1, "h1", generation > 1}};
  return record;
}

std::string lines_of_records(const std::vector<MetricRecord>& records) {
  std::string text;
  for (const auto& record : records) text += to_json(record) + "\n";
  return text;
}

testing::Finished report(const std::vector<std::string>& words) {
  std::vector<std::string> command{TROUPE_PROGRAM, "report"};
  command.insert(command.end(), words.begin(), words.end());
  return testing::RunningProcess(command, std::map<std::string, std::string>{}).finish();
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
  CHECK_THAT(remedy(n, "loader"), Catch::Contains("num_workers"));

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

TEST_CASE("[T08] the page escapes every text, asks nothing of a network, and draws what there is") {
  const std::string evil = "<script>alert('x')</script>&\"\x01";
  RunHistory run;
  run.folder = "runs/" + evil;
  run.facts = {evil, evil, evil, evil, evil, evil, evil};
  run.remarks = {evil};
  auto joined = change(0, 2, evil, 20);
  joined.members[1].host = joined.cause = evil;
  run.records = {start_of(0, 1), joined, interval(1, 0.1, 5), interval(2, 0.1, 5), interval(3, 0.1, 5)};
  MetricRecord notice = joined, validation, end;
  notice.generation = 0;
  notice.event = evil;
  validation.kind = MetricRecord::Kind::validation;
  validation.step = 3;
  validation.add("validation_metrics/loss", 0.5);
  end.kind = MetricRecord::Kind::end;
  end.text = evil;
  run.records.insert(run.records.end(), {notice, validation, end});
  const auto page = report_html(run, numbers_of(run.records), {{evil, true, evil, evil}});
  CHECK(report_html(run, numbers_of(run.records), {}, &run).find("<script") == std::string::npos);
  CHECK(page.find("<script") == std::string::npos);
  CHECK(page.find("alert(&#39;x&#39;)") != std::string::npos);
  CHECK(page.find('\x01') == std::string::npos);
  for (const std::string word : {"http:", "https:", "src=", "href=", "url(", "@import", "javascript:"}) {
    INFO(word);
    CHECK(page.find(word) == std::string::npos);
  }
  CHECK_THAT(page, Catch::Contains("default-src 'none'"));
  CHECK(testing::count_of(page, "<polyline") >= 4);
  CHECK(testing::count_of(page, "<circle") == 1);
  CHECK_THAT(page, Catch::Contains("rank 1 (&lt;script"));
  CHECK(testing::count_of(page, "class='mark'") == 4);
}

TEST_CASE("[T08] a report begins with the outcome and what to do next, and has each failure in a table") {
  RunHistory run;
  run.folder = "runs/a";
  run.records = {start_of(0, 1), change(0, 1, "begins", 0), interval(1, 0.1, 5), interval(2, 0.1, 5)};
  const auto lines = [&] { return outcome_lines(run, numbers_of(run.records)); };
  CHECK_THAT(lines().at(0), Catch::StartsWith("not finished: 2 steps in 2.0 s; last loss 0.5, best 0.5 at step 2"));
  CHECK_THAT(lines().at(2), Catch::StartsWith("next: troupe ps"));
  run.facts.exit_code = "137";  // every rank was killed
  CHECK_THAT(lines().at(0), Catch::StartsWith("failed (exit code 137): "));
  MetricRecord end;
  end.kind = MetricRecord::Kind::end;
  end.step = 2;
  end.wall_time = 1003;
  run.records.push_back(end);
  CHECK_THAT(lines().at(0), Catch::StartsWith("failed (exit code 137): "));  // another rank, after rank 0's end
  run.facts.exit_code.clear();
  CHECK_THAT(lines().at(0), Catch::StartsWith("finished: "));
  CHECK(lines().size() == 1);
  CHECK_THAT(report_html(run, numbers_of(run.records), {}), Catch::Contains("None: the membership never changed."));
  run.records.back().signal = 2;
  CHECK_THAT(lines().at(0), Catch::StartsWith("stopped: "));

  run.records.back().text = "rank 0: the job was aborted: rank 1, compute: it broke";
  auto lost = change(2, 2, "1 rank replaced", 1500);
  lost.cause = "rank 1 died";
  run.records.insert(run.records.end() - 1, lost);
  auto unseen = change(2, 3, "1 rank replaced", 0);
  unseen.members[0].newcomer = true;
  unseen.members[1].newcomer = false;
  run.records.insert(run.records.end() - 1, unseen);
  CHECK_THAT(lines().at(2), Catch::StartsWith("next: Read the output of rank 1."));
  const auto page = report_html(run, numbers_of(run.records), {});
  CHECK_THAT(page, Catch::Contains("<td data-name=\"rank\">1</td><td data-name=\"host\">h1</td><td "
                                   "data-name=\"cause\">rank 1 died</td><td data-name=\"what followed\">1 rank "
                                   "replaced</td><td data-name=\"time lost\">1.5 s</td>"));
  CHECK_THAT(page, Catch::Contains("<td data-name=\"rank\">0</td><td data-name=\"host\">h0</td><td "
                                   "data-name=\"cause\">not recorded, since rank 0 was lost"));
  CHECK_THAT(page, Catch::Contains("rank 1, compute: it broke</td><td data-name=\"what followed\">the run ended"));
  std::size_t before = 0;
  for (const char* part : {"failed.</b>", "Timeline of a step", "Failures and recoveries", "Advice", "Training"}) {
    INFO(part);
    const auto at = page.find(part);
    REQUIRE(at != std::string::npos);
    CHECK(at > before);
    before = at;
  }
}

TEST_CASE("[T08] two runs are compared in words, by name, with an interval where there is one") {
  const auto run_of = [](const char* name, int intervals, double pace, double loss) {
    RunHistory run;
    run.folder = name;
    run.records = {start_of(0, 1)};
    for (int i = 1; i <= intervals; ++i) {
      auto record = interval(i, 0.1, 5);
      record.values.clear();
      record.add("loss_metrics/global_avg_loss", loss + 0.01 * (i % 3));
      record.add("time_metrics/end_to_end(s)", 0.1);
      record.add("throughput(samples/s)", pace + i % 7 - 3);
      record.add("world_size", 2);
      run.records.push_back(record);
    }
    return run;
  };
  const auto slow = run_of("slow", 41, 100, 2), quick = run_of("quick", 31, 150, 1);
  auto lines = comparison(quick, slow);
  REQUIRE(lines.size() == 2);
  CHECK_THAT(lines[0], Catch::StartsWith("Speed: quick 150 samples/s with 2 ranks, slow 100 samples/s with 2 ranks; "
                                         "quick is faster, 1.50 times the baseline's pace, 95 % interval 1.4"));
  CHECK_THAT(lines[1],
             Catch::StartsWith("Training loss, mean of the last 10 common log lines (to step 31): quick 1.01, "
                               "slow 2.01; quick is lower by 1 (49.8 %), 95 % interval 1 to 1."));
  CHECK_THAT(comparison(slow, quick)[0], Catch::Contains("quick is faster, 0.67 times"));
  CHECK_THAT(comparison(slow, run_of("like", 41, 100, 2))[0], Catch::Contains("no clear difference, 1.00 times"));
  CHECK_THAT(comparison(slow, run_of("like", 41, 100, 2))[1], Catch::EndsWith("they are the same."));
  CHECK_THAT(comparison(slow, run_of("short", 3, 50, 2))[0],
             Catch::EndsWith("there are too few log intervals to say how sure this is."));
  const auto page = report_html(quick, numbers_of(quick.records), {}, &slow);
  CHECK_THAT(page, Catch::Contains("Compared with slow") && Catch::Contains("baseline slow"));
}

TEST_CASE("[U04] a report has a chart of each metric that the program logs itself, of training and of held-out data") {
  RunHistory run;
  run.records = {start_of(0, 1), interval(2, 0.1, 5), interval(1, 0.1, 5)};
  const auto without = report_html(run, numbers_of(run.records), {});
  CHECK_THAT(without, !Catch::Contains("own metrics"));
  run.records[1].own = {{"top5 <b>", 0.5}, {"size", 3}};
  run.records[2].own = {{"top5 <b>", 0.25}};
  MetricRecord validation;
  validation.kind = MetricRecord::Kind::validation;
  validation.step = 2;
  validation.own = {{"validation_metrics/top5 <b>", 0.75}};
  run.records.push_back(validation);
  const auto page = report_html(run, numbers_of(run.records), {});
  CHECK_THAT(page, Catch::Contains("own metrics") && Catch::Contains("top5 &lt;b&gt;") && !Catch::Contains("top5 <b>"));
  // Held-out top5, and size, of which there is one point.
  CHECK(testing::count_of(page, "<circle") == testing::count_of(without, "<circle") + 2);
  CHECK(testing::count_of(page, "<polyline") == testing::count_of(without, "<polyline") + 1);

  run.records[1].own.clear();
  for (int i = 0; i < 30; ++i) run.records[1].own.emplace_back("m" + std::to_string(i), i);
  CHECK_THAT(report_html(run, numbers_of(run.records), {}), Catch::Contains(" more are in metrics.jsonl"));
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

TEST_CASE(
    "[T08] what is damaged, torn, empty or no run is told in one line with a code, or in the page where the rest can "
    "be used") {
  testing::ScratchDirectory folder;
  const auto run = [&](const std::string& name, const std::string& metrics) {
    std::filesystem::create_directories(folder / name);
    testing::write_text(folder / (name + "/metrics.jsonl"), metrics);
    return report({folder / name});
  };
  const auto refused = [](const testing::Finished& done, int code, const std::string& why) {
    INFO(done.output);
    CHECK(done.code == code);
    CHECK(testing::count_of(done.output, "\n") == 1);
    CHECK_THAT(done.output, Catch::StartsWith("troupe: ") && Catch::Contains(why));
  };
  refused(report({folder / "nowhere"}), 65, "nowhere/metrics.jsonl: there is no such file");
  refused(run("empty", ""), 65, "it holds no record");
  refused(run("foreign", "a,b\n1,2\n"), 65, "no line of it is a record");
  refused(run("cut", to_json(interval(1, 1, 1)).substr(0, 50)), 65, "it holds no record");
  refused(run("binary", std::string(100'000, '\0') + "\n"), 65, "no line of it is a record");
  refused(report({"--oot", "x"}), 2, "did you mean --out?");
  refused(report({"a", "b"}), 2, "it takes one RUN");
  refused(report({"--baseline"}), 2, "the flag has no value");

  const auto records = lines_of_records({start_of(0, 1), interval(1, 0.1, 5), interval(2, 0.1, 5)});
  const auto torn = run("torn", records + "garbage\n" + to_json(interval(3, 0.1, 5)).substr(0, 60));
  INFO(torn.output);
  CHECK(torn.code == 0);
  CHECK_THAT(torn.output, Catch::Contains("1 line of metrics.jsonl can't be read, the first is line 4") &&
                              Catch::Contains("The last line of metrics.jsonl is torn") &&
                              Catch::Contains("There is no run.json"));
  const auto page = testing::read_text(folder / "torn/report.html");
  CHECK_THAT(page, Catch::Contains("the first is line 4") && Catch::Contains("There is no run.json") &&
                       Catch::Contains("not finished.</b> It is still running, or it was killed") &&
                       Catch::EndsWith("</html>\n"));
  testing::write_text(folder / "torn/run.json", "[1, 2");
  CHECK_THAT(report({folder / "torn"}).output, Catch::Contains("run.json can't be read"));
  testing::write_text(folder / "torn/run.json",
                      nlohmann::json{{"job_id", 7}, {"command", "x"}, {"versions", 1}, {"strategy", "ddp"}}.dump());
  CHECK(report({folder / "torn"}).code == 0);

  refused(report({folder / "torn", "--out", folder / "nowhere/page.html"}), 74, "nowhere/page.html: No such file");
  CHECK_THAT(report({folder / "torn", "--baseline", folder / "torn"}).output, Catch::Contains("they are the same"));
  for (const auto& entry : std::filesystem::directory_iterator(folder / "torn"))
    CHECK(entry.path().string().find(".tmp-") == std::string::npos);
}

TEST_CASE("[T08] a job whose rank is killed has the loss, the split, both ranks and the recovery in its report") {
  // The loader is what each step waits for most, the one that is run again, too.
  Launch launch(2,
                {"--epochs", "6", "--log_interval", "4", "--probe_model", "norm", "--probe_load_ms", "8", "--fail_rank",
                 "1", "--fail_step", "40", "--fail_how", "kill"},
                {});
  const auto done = launch.finish();
  INFO(done.output);
  REQUIRE(done.code == 0);
  const auto run = launch.folder() / "run";
  const auto told = report({run});
  INFO(told.output);
  REQUIRE(told.code == 0);
  CHECK_THAT(told.output,
             Catch::StartsWith(run + "/report.html\n") && Catch::Contains("failures: The membership changed 1 time, "));
  const auto history = read_run(run);
  CHECK(history.remarks.empty());
  CHECK(history.records.back().kind == MetricRecord::Kind::end);
  CHECK(history.records.back().text.empty());
  const auto n = numbers_of(history.records);
  CHECK(n.steps == 96);
  CHECK(n.world_size == 2);
  CHECK(n.ranks.size() == 2);
  CHECK(n.stalled_s > 0);
  CHECK(n.buckets > 0.9);
  CHECK(n.bucket_mib > 0);
  CHECK(n.forward > 0);
  CHECK(n.backward > 0);
  CHECK(n.validation > 0);
  for (const auto& record : history.records) {
    if (record.kind != MetricRecord::Kind::train) continue;
    INFO(to_json(record));
    double sum = 0;
    for (const char* part :
         {"data_loading", "forward", "backward", "collectives", "exposed_communication", "optimizer"})
      sum += record.value(("time_metrics/" + std::string(part) + "(%)").c_str());
    CHECK(sum <= 100.5);  // parts of one thread's time
  }
  const auto page = testing::read_text(run + "/report.html");
  CHECK_THAT(page, Catch::Contains("<b>finished (exit code 0).</b>"));
  CHECK_THAT(page, Catch::Contains("<td data-name=\"rank\">1</td><td data-name=\"host\">localhost</td>") &&
                       Catch::Contains("data-name=\"cause\">rank 1") &&
                       Catch::Contains("1 rank replaced, 2 ranks go on at step 40"));
  CHECK_THAT(page, Catch::Contains("</i>forward<") && Catch::Contains("rank 0 (localhost)") &&
                       Catch::Contains("rank 1 (localhost)"));
  CHECK_THAT(page, Catch::Contains("held out") && Catch::Contains("the run finished"));
}

TEST_CASE("[T08] a job that a signal stops is stopped in the report, with the launcher's exit code") {
  Launch launch(2, {"--epochs", "4000", "--log_interval", "4", "--pause_ms", "10"});
  REQUIRE(launch.wait_for("step 8/"));
  launch.signal(SIGINT);
  REQUIRE(launch.finish().code == 130);
  CHECK_THAT(report({launch.folder() / "run"}).output, Catch::Contains("\nstopped (exit code 130): "));
  CHECK_THAT(testing::read_text(launch.folder() / "run/report.html"), Catch::Contains("Signal 2 asked it to stop."));
}

TEST_CASE("[T08] a job that fails has its error in the report") {
  Launch launch(2, {"--epochs", "2", "--log_interval", "2", "--fail_rank", "1", "--fail_step", "9"});
  const auto done = launch.finish();
  INFO(done.output);
  REQUIRE(done.code != 0);
  const auto told = report({launch.folder() / "run"});
  INFO(told.output);
  REQUIRE(told.code == 0);
  const auto page = testing::read_text(launch.folder() / "run/report.html");
  CHECK_THAT(page, Catch::Contains("<b>failed (exit code 1).</b>") && Catch::Contains("the probe was told to throw") &&
                       Catch::Contains("tail -n 50 " + (launch.folder() / "run/rank1.log")));
}

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

  const auto loader =
      warnings_of(warnings, run, 20, [](MetricRecord& record) { record.add("time_metrics/data_loading(%)", 40); });
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
