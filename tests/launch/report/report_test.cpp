// troupe report: the page, the comparison of two runs, damaged folders, and jobs that were hurt.
#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "launch/report/run_comparison.hpp"
#include "launch/report/run_report.hpp"
#include "tests/support/count_of.hpp"
#include "tests/support/launch.hpp"
#include "tests/support/run_records.hpp"

using namespace troupe;
using testing::change;
using testing::interval;
using testing::Launch;
using testing::start_of;

namespace {

std::string page_of(const RunHistory& run) { return report_html(report_on(MeasuredRun(run))); }

testing::Finished report(const std::vector<std::string>& words) {
  std::vector<std::string> command{TROUPE_PROGRAM, "report"};
  command.insert(command.end(), words.begin(), words.end());
  return testing::RunningProcess(command, std::map<std::string, std::string>{}).finish();
}

}  // namespace

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
  const MeasuredRun measured(run);
  auto report = report_on(measured, &measured);
  report.advice = {{evil, true, evil, evil}};
  CHECK(report_html(report).find("<script") == std::string::npos);
  report.baseline = nullptr;
  const auto page = report_html(report);
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
  const auto lines = [&] { return outcome_lines(outcome_of(run), MeasuredRun(run)); };
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
  CHECK_THAT(page_of(run), Catch::Contains("None: the membership never changed."));
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
  const auto page = page_of(run);
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
  const MeasuredRun slow(run_of("slow", 41, 100, 2)), quick(run_of("quick", 31, 150, 1)),
      like(run_of("like", 41, 100, 2)), brief(run_of("short", 3, 50, 2));
  auto lines = comparison(quick, slow);
  REQUIRE(lines.size() == 2);
  CHECK_THAT(lines[0], Catch::StartsWith("Speed: quick 150 samples/s with 2 ranks, slow 100 samples/s with 2 ranks; "
                                         "quick is faster, 1.50 times the pace of slow, 95 % interval 1.4"));
  CHECK_THAT(lines[1],
             Catch::StartsWith("Training loss, mean of the last 10 common log lines (to step 31): quick 1.01, "
                               "slow 2.01; quick is lower by 1 (49.8 %), 95 % interval 1 to 1."));
  CHECK_THAT(comparison(slow, quick)[0], Catch::Contains("quick is faster, 1.50 times the pace of slow"));
  CHECK_THAT(comparison(slow, like)[0], Catch::Contains("no clear difference, slow has 1.00 times the pace of like"));
  CHECK_THAT(comparison(slow, like)[1], Catch::EndsWith("they are the same."));
  CHECK_THAT(comparison(slow, brief)[0], Catch::EndsWith("there are too few log intervals to say how sure this is."));
  const auto report = report_on(quick, &slow);
  const auto page = report_html(report);
  CHECK_THAT(page, Catch::Contains("Compared with slow") && Catch::Contains("training, quick") &&
                       Catch::Contains("training, slow"));
  // One comparison, on the page and for the console.
  const auto said = report_lines(report);
  for (const auto& line : lines) {
    CHECK_THAT(page, Catch::Contains("<p>" + line + "</p>"));
    CHECK(std::find(said.begin(), said.end(), line) != said.end());
  }
}

TEST_CASE("[U04] a report has a chart of each metric that the program logs itself, of training and of held-out data") {
  RunHistory run;
  run.records = {start_of(0, 1), interval(2, 0.1, 5), interval(1, 0.1, 5)};
  const auto without = page_of(run);
  CHECK_THAT(without, !Catch::Contains("own metrics"));
  run.records[1].own = {{"top5 <b>", 0.5}, {"size", 3}};
  run.records[2].own = {{"top5 <b>", 0.25}};
  MetricRecord validation;
  validation.kind = MetricRecord::Kind::validation;
  validation.step = 2;
  validation.own = {{"validation_metrics/top5 <b>", 0.75}};
  run.records.push_back(validation);
  const auto page = page_of(run);
  CHECK_THAT(page, Catch::Contains("own metrics") && Catch::Contains("top5 &lt;b&gt;") && !Catch::Contains("top5 <b>"));
  // Held-out top5, and size, of which there is one point.
  CHECK(testing::count_of(page, "<circle") == testing::count_of(without, "<circle") + 2);
  CHECK(testing::count_of(page, "<polyline") == testing::count_of(without, "<polyline") + 1);

  run.records[1].own.clear();
  for (int i = 0; i < 30; ++i) run.records[1].own.emplace_back("m" + std::to_string(i), i);
  CHECK_THAT(page_of(run), Catch::Contains(" more are in metrics.jsonl"));
}

TEST_CASE(
    "[T08] a report has charts and cards of accuracy, learning rate and memory, each only if the records have it") {
  RunHistory run;
  run.folder = "r";
  run.records = {start_of(0, 1), interval(1, 0.1, 5), interval(2, 0.1, 5)};
  MetricRecord validation;
  validation.kind = MetricRecord::Kind::validation;
  validation.step = 2;
  run.records.push_back(validation);
  const auto set = [&](std::size_t record, const char* name, double value) { run.records[record].add(name, value); };
  const auto has = [&](const std::string& words) { return page_of(run).find(words) != std::string::npos; };
  for (const std::string words : {"ccuracy", "earning rate", "emory"}) CHECK_FALSE(has(words));
  for (const std::size_t record : {1, 2}) {
    set(record, "accuracy", 0);  // nothing counts
    set(record, "memory/max_active(GiB)", 0);
  }
  set(3, "validation_metrics/accuracy", 0);
  for (const std::string words : {"ccuracy", "emory"}) CHECK_FALSE(has(words));

  set(1, "lr", 0.25);
  set(2, "lr", 0.125);
  set(1, "memory/max_resident(GiB)", 0.5);
  set(2, "memory/max_resident(GiB)", 0.75);
  CHECK_THAT(page_of(run), Catch::Contains("<b>Learning rate</b>") &&
                               Catch::Contains("<span>last learning rate</span><b>0.125</b>") &&
                               Catch::Contains("<b>Memory</b> (GiB, rank 0)") &&
                               Catch::Contains("<span>peak memory, rank 0</span><b>0.75 GiB</b>"));
  for (const std::string words : {"device memory", "device, "}) CHECK_FALSE(has(words));
  set(2, "memory/max_reserved(GiB)", 12);
  CHECK_THAT(page_of(run), Catch::Contains("<span>peak device memory, rank 0</span><b>12 GiB</b>") &&
                               Catch::Contains("device, reserved") && !Catch::Contains("device, tensors"));

  const auto accuracy = [&](std::size_t record) -> double& {
    auto& values = run.records[record].values;
    return std::find_if(values.begin(), values.end(),
                        [](const auto& entry) { return std::string(entry.first->name).ends_with("accuracy"); })
        ->second;
  };
  accuracy(1) = 0.5;
  accuracy(2) = 0.75;
  accuracy(3) = 0.625;
  const auto page = page_of(run);
  CHECK_THAT(page, Catch::Contains("<b>Accuracy</b> (% of the samples)") &&
                       Catch::Contains("<span>last accuracy</span><b>75.0 %</b>") &&
                       Catch::Contains("<span>best held-out accuracy</span><b>62.5 % at step 2</b>") &&
                       Catch::Contains("held out: 62.5 at 2"));
}

TEST_CASE("[U04] the strategy's own figures have charts under their own heading, beside the program's") {
  RunHistory run;
  run.records = {start_of(0, 1), interval(1, 0.1, 5), interval(2, 0.1, 5)};
  for (const std::size_t record : {1, 2}) run.records[record].own = {{"strategy/staleness", 1.0}, {"top5", 0.5}};
  const auto page = page_of(run);
  const auto strategy = page.find("<h2>The strategy's own figures</h2>"),
             figure = page.find("<b>strategy/staleness</b>"), program = page.find("<h2>The program's own metrics</h2>"),
             metric = page.find("<b>top5</b>");
  REQUIRE(metric != std::string::npos);
  CHECK(strategy < figure);
  CHECK(figure < program);
  CHECK(program < metric);
  for (const std::size_t record : {1, 2}) run.records[record].own.pop_back();
  CHECK_THAT(page_of(run), !Catch::Contains("The program's own metrics"));
}

TEST_CASE("[T08] troupe report takes two runs and compares the first with the second, as --baseline does") {
  testing::ScratchDirectory folder;
  for (const auto& [name, seconds] : {std::pair{"a", 0.1}, std::pair{"b", 0.2}}) {
    std::filesystem::create_directories(folder / name);
    std::vector<MetricRecord> records{start_of(0, 1)};
    for (int step = 1; step <= 12; ++step) records.push_back(interval(step, seconds, 5));
    testing::write_text(folder / (std::string(name) + "/metrics.jsonl"), testing::lines_of_records(records));
  }
  const auto a = folder / "a", b = folder / "b";
  const auto two = report({a, b});
  INFO(two.output);
  REQUIRE(two.code == 0);
  const auto page = testing::read_text(a + "/report.html");
  CHECK_THAT(two.output, Catch::StartsWith(a + "/report.html\n") && Catch::Contains("Speed: " + a) &&
                             Catch::Contains("Training loss, mean of the last 10 common log lines"));
  CHECK_THAT(page, Catch::Contains("Compared with " + b));
  CHECK_FALSE(std::filesystem::exists(b + "/report.html"));
  CHECK(report({a, "--baseline", b}).output == two.output);
  CHECK(testing::read_text(a + "/report.html") == page);

  std::filesystem::create_symlink("a", folder / "latest");
  for (const auto& same : {a, folder / "latest", a + "/."}) {
    const auto refused = report({a, same});
    INFO(refused.output);
    CHECK(refused.code == 2);
    CHECK(testing::count_of(refused.output, "\n") == 1);
    CHECK_THAT(refused.output, Catch::Contains("are the same run; name another run to compare with"));
  }
  std::filesystem::create_directories(folder / "none");
  CHECK_THAT(report({a, folder / "none"}).output, Catch::Contains("none/metrics.jsonl: there is no such file"));
  CHECK(report({folder / "none", a}).code == 65);
}

TEST_CASE(
    "[T08] what is damaged, torn, empty or no run is said in one line with a code, or in the page where the rest can "
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
  refused(report({"a", "b", "c"}), 2, "it takes two runs at most, and 3 were given");
  refused(report({""}), 2, "the name of a run is empty");
  refused(report({"a", "b", "--baseline", "b"}), 2, "--baseline and a second run are the same");
  refused(report({"--baseline"}), 2, "the flag has no value");

  const auto records = testing::lines_of_records({start_of(0, 1), interval(1, 0.1, 5), interval(2, 0.1, 5)});
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
  refused(report({folder / "torn", "--baseline", folder / "torn"}), 2, "are the same run");
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
