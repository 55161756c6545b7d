// The page that follows a run, asked as a browser asks it, and by a browser; and the same in a terminal.
#include <netinet/in.h>
#include <sys/socket.h>

#include <cmath>
#include <filesystem>
#include <optional>
#include <regex>
#include <thread>

#include <httplib.h>
#include <nlohmann/json.hpp>

#include "launch/observe/live_page.hpp"
#include "launch/observe/metrics_page.hpp"
#include "launch/observe/top_screen.hpp"
#include "tests/support/launch.hpp"

using namespace troupe;
using testing::Launch;

namespace {

MetricRecord live_record(std::int64_t step) {
  MetricRecord record;
  record.step = record.steps_from = step;
  record.wall_time = 2000 + static_cast<double>(step);
  record.add("loss_metrics/global_avg_loss", 1.0 / static_cast<double>(step));
  record.add("throughput(samples/s)", 640 + static_cast<double>(step));
  record.add("time_metrics/end_to_end(s)", 0.02);
  record.add("time_metrics/exposed_communication(%)", 12.5);
  record.add("time_metrics/data_loading(%)", 3);
  record.add("time_metrics/reduce(ms)", 5);
  record.add("queue/loader(batches)", 1.75);
  record.add("queue/reducer(buckets)", 0.25);
  record.add("world_size", 2);
  record.ranks = {{1, 2, 3}, {1, 2, 4}};
  return record;
}

MetricRecord live_membership(std::int64_t step, std::uint64_t generation, const std::string& why) {
  MetricRecord record;
  record.kind = MetricRecord::Kind::event;
  record.step = record.steps_from = step;
  record.wall_time = 2000 + static_cast<double>(step);
  record.event = "membership";
  record.text = why;
  record.generation = generation;
  record.members = {{0, 0, "h0", false}, {1, 1, "h1", true}};
  return record;
}

int unused_port() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  socklen_t bytes = sizeof address;
  const bool bound = ::bind(fd, reinterpret_cast<sockaddr*>(&address), bytes) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) == 0;
  ::close(fd);
  REQUIRE(bound);
  return ntohs(address.sin_port);
}

std::vector<std::int64_t> steps_in(const std::string& records) {
  std::vector<std::int64_t> steps;
  const auto answer = nlohmann::json::parse(records);
  for (const auto& record : answer["records"]) steps.push_back(record["step"]);
  return steps;
}

const char* browser() {
  const char* chromium = std::getenv("TROUPE_CHROMIUM");
  if (chromium == nullptr) WARN("SKIPPED: TROUPE_CHROMIUM names no browser; ./dev observe has one");
  return chromium;
}

// What a page has become after its scripts ran for some seconds of its time; nothing where there is no browser.
std::optional<std::string> browsed(const std::string& address) {
  const char* chromium = browser();
  if (chromium == nullptr) return std::nullopt;
  testing::ScratchDirectory profile;
  testing::RunningProcess process(
      {chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
       "--disable-background-networking", "--disable-component-update", "--enable-logging=stderr",
       "--user-data-dir=" + profile.path(), "--virtual-time-budget=3500", "--dump-dom", address},
      std::map<std::string, std::string>{});
  const auto done = process.finish();
  INFO(done.output);
  REQUIRE(done.code == 0);
  CHECK(done.output.find("Uncaught") == std::string::npos);
  CHECK(done.output.find("Content Security Policy") == std::string::npos);
  const auto begin = done.output.find("<!DOCTYPE html>");
  REQUIRE(begin != std::string::npos);
  return done.output.substr(begin);
}

// The number in the card of this name.
double card(const std::string& dom, const std::string& name) {
  std::smatch found;
  if (!std::regex_search(dom, found, std::regex("<span>" + name + "</span><b>([0-9.]+)"))) return std::nan("");
  return std::stod(found[1]);
}

testing::Finished top(const std::vector<std::string>& words) {
  std::vector<std::string> command{TROUPE_PROGRAM, "top"};
  command.insert(command.end(), words.begin(), words.end());
  return testing::RunningProcess(command, std::map<std::string, std::string>{}).finish();
}

}  // namespace

TEST_CASE("[T07] the live page gets each record once, within a bound of memory, and the membership however old it is") {
  LiveRecords live("job \"7\"", "brave-<b>otter", 3000);
  CHECK(steps_in(live.from(0)).empty());
  live.add(live_membership(0, 1, "the job begins"));
  live.add(live_record(1));
  const auto answer = nlohmann::json::parse(live.from(0));
  CHECK(answer["job_id"] == "job \"7\"");
  CHECK(answer["run"] == "brave-<b>otter");
  CHECK(answer["next"] == 2);
  CHECK(answer["life"] > 0);
  CHECK(steps_in(live.from(1)) == std::vector<std::int64_t>{1});
  CHECK(steps_in(live.from(2)).empty());
  for (const auto beyond : {std::int64_t{99}, std::numeric_limits<std::int64_t>::max()})
    CHECK(steps_in(live.from(beyond)).empty());
  CHECK(steps_in(live.from(std::numeric_limits<std::int64_t>::min())) == std::vector<std::int64_t>{0, 1});
  for (int step = 2; step <= 200; ++step) live.add(live_record(step));
  const auto all = live.from(0);
  CHECK(all.size() < 5000);
  const auto steps = steps_in(all);
  CHECK(steps.front() == 0);  // the membership
  CHECK(steps.back() == 200);
  CHECK(steps.size() > 3);
  CHECK(steps_in(live.from(200)) == std::vector<std::int64_t>{200});
}

TEST_CASE("[T07] the live page and /metrics are one server on loopback, which a name from elsewhere does not reach") {
  const auto port = unused_port();
  MetricsPage page(static_cast<std::uint16_t>(port), "job");
  page.write(live_membership(0, 1, "the job begins"));
  page.write(live_record(4));
  httplib::Client client("127.0.0.1", port);
  const auto html = client.Get("/");
  REQUIRE(html);
  CHECK(html->status == 200);
  CHECK(html->get_header_value("Content-Type") == "text/html; charset=utf-8");
  CHECK_THAT(html->get_header_value("Content-Security-Policy"),
             Catch::Contains("default-src 'none'") && Catch::Contains("connect-src 'self'"));
  CHECK(html->get_header_value("X-Content-Type-Options") == "nosniff");
  CHECK(html->body == testing::read_text(TROUPE_SOURCE_DIR "/launch/observe/live_page.html"));
  CHECK(html->body.find("http:") == html->body.find("http://www.w3.org/2000/svg"));  // a name, no address
  CHECK(html->body.find("innerHTML") == std::string::npos);
  const auto records = client.Get("/records?after=1");
  REQUIRE(records);
  CHECK(steps_in(records->body) == std::vector<std::int64_t>{4});
  for (const char* odd : {"/records", "/records?after=", "/records?after=x", "/records?after=-5",
                          "/records?after=99999999999999999999999"}) {
    INFO(odd);
    const auto answer = client.Get(odd);
    REQUIRE(answer);
    CHECK(answer->status == 200);
    CHECK(steps_in(answer->body).size() == 2);
  }
  CHECK(client.Get("/metrics")->status == 200);
  CHECK(client.Get("/etc/passwd")->status == 404);
  for (const char* path : {"/", "/records", "/metrics"}) {
    CHECK(client.Get(path, {{"Host", "evil.example:" + std::to_string(port)}})->status == 403);
    CHECK(client.Get(path, {{"Host", "127.0.0.1.evil.example"}})->status == 403);
    CHECK(client.Get(path, {{"Host", "localhost:" + std::to_string(port)}})->status == 200);
  }
}

TEST_CASE("[T07] a browser shows the records of the live page, and text from a job never becomes markup") {
  const auto port = unused_port();
  MetricsPage page(static_cast<std::uint16_t>(port), "job-7");
  const std::string evil = "<img src=x onerror=document.title='broken'>";
  auto membership = live_membership(2, 2, evil);
  membership.members[1].host = evil;
  membership.stalled_ms = 250;
  membership.cause = evil;
  page.write(membership);
  for (int step = 1; step <= 30; ++step) page.write(live_record(step));
  const auto dom = browsed("http://127.0.0.1:" + std::to_string(port) + "/");
  if (!dom) return;
  INFO(*dom);
  CHECK_THAT(*dom, Catch::Contains("<title>step 30, running - troupe</title>") && Catch::Contains("job job-7"));
  CHECK(card(*dom, "step") == 30);
  CHECK(card(*dom, "loss") == Approx(0.03333));
  CHECK(card(*dom, "samples/s") == 670);
  CHECK(card(*dom, "exposed communication") == 12.5);
  CHECK(card(*dom, "ranks") == 2);
  CHECK_THAT(*dom, Catch::Contains(
                       "<td>data loader → compute</td><td>1.75 batches</td><td>compute waits 3.0 % of a step</td>"));
  CHECK_THAT(*dom, Catch::Contains(
                       "<td>compute → reducer</td><td>0.25 buckets</td><td>the reducer waits 75.0 % of a step</td>"));
  CHECK_THAT(*dom, Catch::Contains("<td>0</td><td>h0</td><td>0</td><td>6 ms</td>"));
  CHECK_THAT(*dom, Catch::Contains("membership 2: &lt;img src=x") && Catch::Contains("; cause: &lt;img src=x") &&
                       Catch::Contains("(the job stood still for 250 ms)"));
  CHECK_THAT(*dom, Catch::Contains("No validation yet: it comes after every validate_every epochs"));
  CHECK(dom->find("<img") == std::string::npos);
  for (const char* id : {"loss", "pace", "waits"}) {
    INFO(id);
    const auto begin = dom->find("<svg id=\"" + std::string(id) + "\"");
    REQUIRE(begin != std::string::npos);
    const auto svg = dom->substr(begin, dom->find("</svg>", begin) - begin);
    CHECK_THAT(svg, Catch::Contains("<line class=\"mark\"") && Catch::Contains(" at step 30\"") &&
                        Catch::Contains(">step</text>"));
    const auto line = svg.find(R"(<polyline class="c0" points=")");
    REQUIRE(line != std::string::npos);
    const auto points = svg.substr(line, svg.find("</polyline>", line) - line);
    CHECK(std::count(points.begin(), points.end(), ',') == 30);
  }
}

TEST_CASE("[T07] a browser shows how a run ended and what to do next, and before the first step what will come") {
  const auto port = unused_port();
  MetricsPage page(static_cast<std::uint16_t>(port), "job-7");
  const auto address = "http://127.0.0.1:" + std::to_string(port) + "/";
  const auto before = browsed(address);
  if (!before) return;
  CHECK_THAT(*before, Catch::Contains(">waiting</span>") && Catch::Contains("No log line yet: the first comes after") &&
                          Catch::Contains("No event yet."));
  page.write(live_record(1));
  MetricRecord validation, end;
  validation.kind = MetricRecord::Kind::validation;
  validation.step = 1;
  validation.add("validation_metrics/loss", 0.5);
  validation.add("validation_metrics/accuracy", 0.25);
  page.write(validation);
  auto earlier = live_record(2);
  earlier.own = {{"temperature", 0.3}};
  page.write(earlier);
  auto second = live_record(3);
  second.add("total_steps", 8);
  second.add("time_left(s)", 75);
  second.own = {{"strategy/outer_steps", 3}, {"temperature", 0.1 + 0.2}};  // the last bit differs: no room for a tick
  page.write(second);
  const auto running = browsed(address);
  REQUIRE(running);
  CHECK_THAT(*running, Catch::Contains("<h1 id=\"run\">Training run</h1>") && Catch::Contains("<b>3 of 8</b>") &&
                           Catch::Contains("<b>1:15 min</b>") &&
                           Catch::Contains("A figure of the strategy, on rank 0."));
  end.kind = MetricRecord::Kind::end;
  end.step = 1;
  end.signal = 2;
  page.write(end);
  const auto stopped = browsed(address);
  CHECK_THAT(*stopped, Catch::Contains(">was stopped by signal 2</span>") && Catch::Contains("troupe report"));
  CHECK(card(*stopped, "held-out loss") == 0.5);
  CHECK(card(*stopped, "held-out accuracy") == 25);
  CHECK_THAT(*stopped, Catch::Contains("<i class=\"b1\"></i>held out"));
  end.text = "rank 1: it broke";
  page.write(end);
  CHECK_THAT(*browsed(address), Catch::Contains(">failed</span>") && Catch::Contains("rank 1: it broke. Next: "));
}

TEST_CASE("[T07] a browser follows a job of two ranks, one of which is killed and replaced") {
  if (!browser()) return;
  const auto port = std::to_string(unused_port());
  Launch launch(2,
                {"--epochs", "4000", "--log_interval", "4", "--pause_ms", "10", "--metrics_port", port, "--fail_rank",
                 "1", "--fail_step", "20", "--fail_how", "kill"},
                {});
  REQUIRE(launch.wait_for("1 rank replaced"));
  const auto address = "http://localhost:" + port + "/";
  const auto first = browsed(address);
  const auto mark = launch.output().size();
  REQUIRE(launch.wait_until([&] { return launch.output().find("[rank 0] epoch", mark) != std::string::npos; }));
  const auto second = browsed(address);
  launch.signal(SIGINT);
  const auto done = launch.finish();
  INFO(done.output);
  REQUIRE(first);
  REQUIRE(second);
  CHECK(card(*first, "step") >= 20);
  CHECK(card(*second, "step") > card(*first, "step"));
  CHECK(card(*second, "loss") > 0);
  CHECK_THAT(*second, Catch::Contains("membership 2: 1 rank replaced, 2 ranks go on at step 20"));
  CHECK_THAT(*second, Catch::Contains("the job begins with 2 ranks"));
  CHECK(
      std::regex_search(*second, std::regex("<td>1</td><td>localhost</td><td>1</td><td>[0-9.]+ ms</td><td>new</td>")));
  CHECK(std::regex_search(*second, std::regex("<td>data loader → compute</td><td>[0-9.]+ batches</td>")));
}

TEST_CASE("[T08] a browser draws the report, and finds nothing in it that it would have to load") {
  if (!browser()) return;
  Launch launch(2, {"--epochs", "2", "--log_interval", "4"});
  REQUIRE(launch.finish().code == 0);
  const auto run = launch.folder() / "run";
  REQUIRE(
      testing::RunningProcess({TROUPE_PROGRAM, "report", run}, std::map<std::string, std::string>{}).finish().code ==
      0);
  const auto dom = browsed("file://" + run + "/report.html");
  REQUIRE(dom);
  CHECK_THAT(*dom, Catch::Contains("<polyline class=\"c0\"") && Catch::Contains("<h2>Failures and recoveries</h2>"));
}

TEST_CASE(
    "[T07] troupe top shows loss, throughput, exposed communication, edges, membership and failures within its "
    "terminal") {
  std::vector<MetricRecord> records{live_membership(0, 1, "the job begins with 2 ranks")};
  for (int step = 1; step <= 30; ++step) records.push_back(live_record(step));
  auto& newest = records.back();
  newest.add("total_steps", 120);
  newest.add("time_left(s)", 90);
  newest.add("accuracy", 0.875);
  newest.add("lr", 0.05);
  newest.add("memory/max_resident(GiB)", 1.25);
  newest.own = {{"top5", 0.5}, {"strategy/outer_steps", 7}};
  records.push_back(live_membership(30, 2, "1 rank replaced \x1b[2J\xff"));
  records.back().stalled_ms = 400;
  records.back().cause = "rank 1 died";
  auto screen = top_screen("runs/latest", records, 200, 40, 2035);
  INFO(screen);
  for (const char* part : {"running, last record 5.0 s ago",
                           "step 30 of 120  time left 90.0 s  epoch 1  ranks 2  time of a step 20 ms",
                           "no validation yet",
                           "memory of rank 0 1.25 GiB",
                           "accuracy                87.5%",
                           "learning rate           0.05",
                           "top5                    0.5",
                           "strategy/outer_steps    7",
                           "metric                  now       history",
                           "loss                    0.033",
                           "samples/s               670",
                           "exposed communication   12.5%",
                           "data wait               3%",
                           "good: loss falls",
                           "data loader -> compute  1.75 batches    compute 3%",
                           "compute -> reducer      0.25 buckets    reducer 75%",
                           "membership 2: 1 rank replaced \\x1b[2J\\xff",
                           "  1     h1    7 ms        new",
                           "events, newest first",
                           "  5.0 s ago",
                           "cause: rank 1 died; the job stood still for 400 ms",
                           "step 0  the job begins"})
    CHECK_THAT(screen, Catch::Contains(part));
  for (const char c : screen) CHECK((c == '\n' || (c >= ' ' && c <= '~')));
  screen = top_screen("runs/latest", records, 40, 12, 2035);
  std::istringstream lines(screen);
  std::size_t n = 0;
  for (std::string line; std::getline(lines, line); ++n) CHECK(line.size() <= 40);
  CHECK_THAT(top_screen("r", {}, 80, 24, 0), Catch::Contains("no record yet: the first comes after log_interval"));
  records.resize(1);
  records.push_back(
      {.kind = MetricRecord::Kind::end, .text = "a reason longer than the terminal, up to its last word"});
  CHECK_THAT(top_screen("r", records, 40, 24, 0), Catch::Contains("failed: ") && Catch::Contains("last word"));
  CHECK(spark_line({1, 2, 3, 8}, 4) == "_.-#");
  CHECK(spark_line({5, 5}, 4) == "__");
  CHECK(spark_line({1, std::nan(""), 2}, 2) == " _");
}

TEST_CASE("[T07] troupe top of a pipe shows a run once, leaves a torn line for later, and refuses what is no run") {
  testing::ScratchDirectory folder;
  const auto torn = to_json(live_record(9));
  testing::write_text(folder / "metrics.jsonl",
                      to_json(live_record(3)) + "\nnonsense\n" + torn.substr(0, torn.size() / 2));
  const auto shown = top({folder.path()});
  INFO(shown.output);
  CHECK(shown.code == 0);
  CHECK_THAT(shown.output, Catch::Contains("step 3  epoch 1") && !Catch::Contains("\x1b"));
  CHECK_THAT(top({folder / "nowhere"}).output,
             Catch::StartsWith("troupe: ") && Catch::Contains("there is no such file"));
  CHECK(top({folder / "nowhere"}).code == 65);
  CHECK(top({"--onec"}).code == 2);
  CHECK(top({"a", "b"}).code == 2);
  testing::write_text(folder / "metrics.jsonl", "a,b\n1,2\n");
  CHECK(top({folder.path()}).code == 65);
  testing::write_text(folder / "metrics.jsonl", "");
  CHECK_THAT(top({folder.path()}).output, Catch::Contains("no record yet"));
}

TEST_CASE("[T07] troupe top --port shows what the live page of a run has, and refuses what is none") {
  const auto port = std::to_string(unused_port());
  CHECK(top({"--port", port, "--once"}).code == 69);
  CHECK_THAT(top({"--port", port, "--once"}).output,
             Catch::Contains("127.0.0.1:" + port) && Catch::Contains("--metrics_port"));
  {
    MetricsPage page(static_cast<std::uint16_t>(std::stoi(port)), "job");
    page.write(live_membership(0, 1, "the job begins with 2 ranks"));
    page.write(live_record(7));
    const auto shown = top({"--port=" + port, "--once"});
    INFO(shown.output);
    CHECK(shown.code == 0);
    CHECK_THAT(shown.output, Catch::Contains("troupe top  127.0.0.1:" + port) && Catch::Contains("step 7  epoch 1") &&
                                 Catch::Contains("  1     h1"));
  }
  {
    httplib::Server other;
    other.Get("/records", [](const httplib::Request&, httplib::Response& response) {
      response.set_content("[1]", "application/json");
    });
    const int second = unused_port();
    REQUIRE(other.bind_to_port("127.0.0.1", second));
    std::thread thread([&] { other.listen_after_bind(); });
    const auto shown = top({"--port", std::to_string(second), "--once"});
    other.stop();
    thread.join();
    CHECK(shown.code == 65);
    CHECK_THAT(shown.output, Catch::Contains("not the live page"));
  }
  for (const std::vector<std::string>& bad : {std::vector<std::string>{"--port"},
                                              {"--port", "0"},
                                              {"--port", "70000"},
                                              {"--port", "x"},
                                              {"--port", "80", "run"}})
    CHECK(top(bad).code == 2);
}
