#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <limits>
#include <memory>
#include <regex>
#include <set>
#include <thread>

#include <httplib.h>
#include <nlohmann/json.hpp>

#include "actors/metrics/metric.hpp"
#include "actors/metrics/metrics.hpp"
#include "launch/observe/append_file.hpp"
#include "launch/observe/event_file.hpp"
#include "launch/observe/git_commit.hpp"
#include "launch/observe/json_lines.hpp"
#include "launch/observe/metrics_page.hpp"
#include "launch/observe/mlflow_sink.hpp"
#include "launch/observe/run_info.hpp"
#include "launch/observe/trace_file.hpp"
#include "launch/run/run_file.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/files/file_layer.hpp"
#include "tests/support/python_tool.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;

namespace {

MetricRecord train_record(std::int64_t step, double loss) {
  MetricRecord record;
  record.step = step;
  record.steps_from = step - 1;
  record.wall_time = 1000.5 + static_cast<double>(step);
  record.add("loss_metrics/global_avg_loss", loss);
  record.add("lr", 0.25);
  return record;
}

MetricRecord start_record(std::int64_t step) {
  MetricRecord record;
  record.kind = MetricRecord::Kind::start;
  record.step = record.steps_from = step;
  return record;
}

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// The path of the only event file.
std::string event_file_in(const std::string& folder) {
  return std::filesystem::directory_iterator(folder)->path().string();
}

std::size_t lines_in(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

TEST_CASE("[T07] every metric has one name that Prometheus takes and one that MLflow takes") {
  std::set<std::string> seen;
  for (const auto& metric : metric_names()) {
    INFO(metric.name);
    CHECK(std::regex_match(metric.prometheus, std::regex("troupe_[a-z_]+")));
    CHECK(std::regex_match(mlflow_name(metric), std::regex("[A-Za-z0-9_./ -]+")));
    CHECK(std::string(metric.help).ends_with('.'));
    CHECK(seen.insert(metric.name).second);
    CHECK(seen.insert(metric.prometheus).second);
    CHECK(find_metric(metric.name) == &metric);
    CHECK_THAT(testing::read_text(TROUPE_SOURCE_DIR "/docs/reference/metrics.md"),
               Catch::Contains("| `" + std::string(metric.name) + "` | `" + metric.prometheus + "` | `" +
                               mlflow_name(metric) + "` |"));
  }
}

TEST_CASE("[T07] what torchtitan has a metric for goes by its name") {
  // Those of torchtitan's components/metrics.py that make sense without a GPU's memory and peak.
  for (const char* name :
       {"loss_metrics/global_avg_loss", "loss_metrics/global_max_loss", "grad_norm", "throughput(tps)",
        "time_metrics/end_to_end(s)", "time_metrics/data_loading(%)", "validation_metrics/loss"}) {
    INFO(name);
    CHECK(find_metric(name) != nullptr);
  }
}

TEST_CASE("[T07] a line of metrics.jsonl reads back as the record that it was") {
  auto record = train_record(7, std::numeric_limits<double>::quiet_NaN());
  record.stragglers = {{1, "h1", "forward", 2.5, 30, 12}};
  const auto line = nlohmann::json::parse(to_json(record));
  CHECK(line["schema"] == 1);
  CHECK(line["loss_metrics/global_avg_loss"].is_null());
  CHECK(line["stragglers"][0]["rank"] == 1);
  const auto back = record_from_json(line.dump());
  CHECK(back.step == 7);
  CHECK(back.kind == MetricRecord::Kind::train);
  CHECK(to_json(back) == to_json(record));
  REQUIRE(back.values.size() == 2);
  for (const auto& [metric, value] : back.values) {
    if (metric == find_metric("lr")) CHECK(value == 0.25);
    if (metric != find_metric("lr")) CHECK(std::isnan(value));
  }
  CHECK(record_from_json("{\"step\": 3").step == -1);
  CHECK(record_from_json("[]").step == -1);
}

TEST_CASE("[U04] a metric of the program's own is in a line of metrics.jsonl and on /metrics under its name") {
  auto record = train_record(7, 1);
  record.own = {{"accuracy/top5", 0.75}, {"noise", std::numeric_limits<double>::quiet_NaN()}};
  const auto line = nlohmann::json::parse(to_json(record));
  CHECK(line["own"]["accuracy/top5"] == 0.75);
  CHECK(line["own"]["noise"].is_null());
  const auto back = record_from_json(line.dump());
  CHECK(to_json(back) == to_json(record));
  REQUIRE(back.own.size() == 2);
  CHECK(back.own[0] == record.own[0]);
  MetricsPage page(0, "job");
  page.write(record);
  CHECK_THAT(page.text(), Catch::Contains("troupe_own_metric{name=\"accuracy/top5\"} 0.75"));
  ValidationReport report;
  report.logged.add("accuracy/top5", 0.5, Reduce::mean, 3);
  report.logged.add("accuracy/top5", 1, Reduce::mean, 1);
  CHECK(record_of(report).own ==
        std::vector<std::pair<std::string, double>>{{"validation_metrics/accuracy/top5", 0.625}});
}

TEST_CASE("[T07] a rank 0 that takes over writes the records that the dead one had not, and those alone") {
  const auto line = [](std::int64_t step) { return to_json(train_record(step, 1)) + "\n"; };
  const auto known = line(8) + line(9) + line(10);
  const auto steps = [&](const std::string& tail) {
    std::vector<std::int64_t> found;
    for (const auto& record : earlier_records(known, tail).lost) found.push_back(record.step);
    return found;
  };
  CHECK(steps(line(7) + line(8)) == std::vector<std::int64_t>{9, 10});
  CHECK(steps(line(10)).empty());
  CHECK(steps("") == std::vector<std::int64_t>{8, 9, 10});
  // An older run in the same folder went further; the start line says that this one is another.
  const auto tail = line(500) + to_json(start_record(0)) + "\n" + line(8);
  CHECK(steps(tail) == std::vector<std::int64_t>{9, 10});
  const auto written = earlier_records(known, tail).written;
  REQUIRE(written.size() == 1);
  CHECK(to_json(written[0]) == to_json(train_record(8, 1)));
  auto validation = train_record(9, 1);
  validation.kind = MetricRecord::Kind::validation;
  const auto behind = line(9) + to_json(validation) + "\n";
  const auto lost = [&](const std::string& file) { return earlier_records(behind, file).lost; };
  REQUIRE(lost(line(9)).size() == 1);
  CHECK(lost(line(9))[0].kind == MetricRecord::Kind::validation);
  CHECK(lost(behind).empty());
  CHECK(lost(line(8)).size() == 2);
}

TEST_CASE("[T07] half a line that a killed process left is cut off, and whole lines stay") {
  testing::ScratchDirectory folder;
  testing::write_text(folder / "metrics.jsonl", "one\ntwo\nthr");
  CHECK(mend_and_read_tail(folder / "metrics.jsonl") == "one\ntwo\n");
  CHECK(testing::read_text(folder / "metrics.jsonl") == "one\ntwo\n");
  testing::write_text(folder / "metrics.jsonl", "one\ntwo\nthree\nfo");
  CHECK(mend_and_read_tail(folder / "metrics.jsonl", 11) == "three\n");
  CHECK(testing::read_text(folder / "metrics.jsonl") == "one\ntwo\nthree\n");
  CHECK(mend_and_read_tail(folder / "none").empty());
}

TEST_CASE("[T07] a disk that is full costs records and leaves no half of one") {
  testing::ScratchDirectory folder;
  JsonLines lines(folder / "metrics.jsonl");
  EventFile events(folder / "tensorboard");
  lines.write(train_record(1, 1));
  events.write(train_record(1, 1));
  const auto whole = testing::read_text(folder / "metrics.jsonl");
  const auto events_whole = testing::read_text(event_file_in(folder / "tensorboard"));

  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit full{whole.size() + 20, old.rlim_max};  // both files have room for a part of the next record
  ::setrlimit(RLIMIT_FSIZE, &full);
  const auto failure = error_of([&] { lines.write(train_record(2, 2)); });
  error_of([&] { events.write(train_record(2, 2)); });
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);

  CHECK_THAT(failure, Catch::Contains(folder / "metrics.jsonl") && Catch::Contains("run_dir"));
  CHECK(testing::read_text(folder / "metrics.jsonl") == whole);
  CHECK(testing::read_text(event_file_in(folder / "tensorboard")).starts_with(events_whole));
  lines.write(train_record(3, 3));
  CHECK(lines_in(testing::read_text(folder / "metrics.jsonl")) == 2);

  JsonLines nowhere("/dev/full");
  CHECK_THAT(error_of([&] { nowhere.write(train_record(1, 1)); }),
             Catch::Contains("No space left") && Catch::Contains("free some space"));
}

TEST_CASE("[T07] TensorBoard reads the records of several lives, steps that came again once") {
  CHECK(crc32c("123456789") == 0xe3069283);
  const auto python = testing::observe_python();
  if (!python) return;
  testing::ScratchDirectory folder;
  {
    EventFile first(folder.path());
    first.write(start_record(0));
    for (int step = 1; step <= 6; ++step) first.write(train_record(step, step));
    auto validation = train_record(6, 0.125);
    validation.kind = MetricRecord::Kind::validation;
    validation.values = {{find_metric("validation_metrics/loss"), 0.125}};
    validation.own = {{"validation_metrics/accuracy/top5", 0.75}};
    first.write(validation);
  }
  {
    EventFile second(folder.path());
    second.write(start_record(4));
    for (int step = 5; step <= 7; ++step) second.write(train_record(step, 10 * step));
  }
  const auto cut = std::filesystem::path(folder / "events.out.tfevents.9999999999.host.1.0");
  testing::write_text(cut, tf_record("\x1a\x0d"
                                     "brain.Event:2") +
                               tf_record("x").substr(0, 9));  // a life that ended within a record
  const auto found = testing::run_python(*python, "read_events.py", {folder.path()});
  REQUIRE(found);
  INFO(found->dump());
  CHECK((*found)["files"] == 3);
  CHECK((*found)["bad_records"] == 0);
  CHECK((*found)["cut_off"] == 1);
  CHECK((*found)["scalars"]["loss_metrics/global_avg_loss"] ==
        nlohmann::json::parse("[[1,1.0],[2,2.0],[3,3.0],[4,4.0],[5,50.0],[6,60.0],[7,70.0]]"));
  CHECK((*found)["scalars"].contains("validation_metrics/accuracy/top5"));
}

TEST_CASE("[T07] a port of /metrics that is taken is told with what to do, and a page listens on loopback only") {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int taken = ::socket(AF_INET, SOCK_STREAM, 0);
  REQUIRE(::bind(taken, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(taken, 1) == 0);
  socklen_t bytes = sizeof address;
  ::getsockname(taken, reinterpret_cast<sockaddr*>(&address), &bytes);
  const auto port = ntohs(address.sin_port);
  CHECK_THAT(error_of([&] { MetricsPage(port, "job"); }), Catch::Contains("port " + std::to_string(port)) &&
                                                              Catch::Contains("in use") &&
                                                              Catch::Contains("--metrics_port"));
  ::close(taken);
  MetricsPage page(port, "job");
  char local[16];
  std::snprintf(local, sizeof local, "0100007F:%04X ", port);
  CHECK_THAT(testing::read_text("/proc/self/net/tcp"), Catch::Contains(local));
  CHECK_THAT(error_of([&] { MetricsPage(port, "job"); }), Catch::Contains("in use"));
  page.write(train_record(12, 0.5));
  CHECK_THAT(page.text(), Catch::Contains("troupe_loss 0.5") && Catch::Contains("troupe_run_info{job_id=\"job\"} 1"));
  const auto found = testing::run_python("/usr/bin/python3", "scrape.py", {std::to_string(port)});
  if (!found) return;
  CHECK((*found)["troupe_step"] == 12);
  CHECK((*found)["troupe_learning_rate"] == 0.25);
}

TEST_CASE("[T07] an MLflow server that is not there costs no time, and its address may hold no password") {
  MlflowSink sink({"http://127.0.0.1:1", "Default", "run", "job", {}, {}, "runs/job/metrics.jsonl"});
  std::string failure;
  for (int step = 1; step < 2000 || (failure.empty() && step < 1'000'000); ++step) {
    const auto now = error_of([&] { sink.write(train_record(step, 1)); });
    if (!now.empty()) failure = now;
  }
  CHECK_THAT(failure, Catch::Contains("http://127.0.0.1:1") && Catch::Contains("--mlflow_uri"));
  const auto end =
      error_of([&] { sink.finish(std::chrono::steady_clock::now() + std::chrono::milliseconds(50), false); });
  CHECK_THAT(end, Catch::Contains("records did not reach the server") && Catch::Contains("metrics.jsonl"));
  CHECK_THAT(error_of([] { MlflowClient({"http://me:secret@host"}); }),
             Catch::Contains("MLFLOW_TRACKING_PASSWORD") && !Catch::Contains("secret"));
  CHECK_THAT(error_of([] { MlflowClient({"mlruns"}); }), Catch::Contains("http://"));
}

TEST_CASE("[R13] an MLflow server's refusal is shown in its own words, with the file that has the records if one has") {
  httplib::Server server;
  const std::string why = "Changing param values is not allowed. Param 'lr' was logged with 0.1";
  server.Get("/api/2.0/mlflow/experiments/get-by-name", [](const httplib::Request&, httplib::Response& response) {
    response.set_content(R"({"experiment":{"experiment_id":"1"}})", "application/json");
  });
  server.Post("/api/2.0/mlflow/runs/search", [&](const httplib::Request&, httplib::Response& response) {
    response.status = 400;
    response.set_content(R"({"error_code":"INVALID_PARAMETER_VALUE","message":")" + why + "\"}", "application/json");
  });
  const auto uri = "http://127.0.0.1:" + std::to_string(server.bind_to_any_port("127.0.0.1"));
  std::thread thread([&] { server.listen_after_bind(); });
  for (const std::string kept : {"", "runs/a/metrics.jsonl"}) {
    INFO(kept);
    MlflowSink sink({uri, "Default", "run", "job", {}, {}, kept});
    std::string failure;
    for (int step = 1; failure.empty() && step < 10'000'000; ++step)
      failure = error_of([&] { sink.write(train_record(step, 1)); });
    CHECK_THAT(failure, Catch::Contains("runs/search: status 400 INVALID_PARAMETER_VALUE, it says: " + why) &&
                            !Catch::Contains("is this an MLflow tracking server?"));
    const auto end = error_of([&] { sink.finish(std::chrono::steady_clock::now(), false); });
    CHECK_THAT(end, Catch::Contains(why));
    CHECK_THAT(end, kept.empty() ? Catch::Contains("they are lost") : Catch::Contains("they are in " + kept));
    CHECK((end.find("metrics.jsonl") != end.npos) == !kept.empty());
  }
  CHECK_THAT(error_of([&] {
               MlflowClient({uri + "/elsewhere", "Default"}).begin();
             }),
             Catch::Contains("status 404") && Catch::Contains("is this an MLflow tracking server?"));
  server.stop();
  thread.join();
}

TEST_CASE("[T07] run.json holds versions, config, hosts and seeds") {
  Config config;
  config.seed = 7;
  RunRecord record;
  record.job_id = "abc";
  record.versions = {{"libtorch", "2.11.0"}};
  record.ranks = {{0, 0, "h0"}, {1, 1, "h1"}};
  record.command = {"./train", "--name", "\xff not text"};
  record.git_commit = "0123";
  const auto run = nlohmann::json::parse(to_json(record, config));
  CHECK(run["schema"] == 1);
  CHECK(run["versions"]["libtorch"] == "2.11.0");
  CHECK(run["git_commit"] == "0123");
  CHECK(run["world_size"] == 2);
  CHECK(run["ranks"][1]["host"] == "h1");
  CHECK(run["seeds"]["seed"] == 7);
  CHECK(run["config"]["lr"] == config.lr);
  CHECK(run["config_hash"] == config_hash(config));
  CHECK(run["lives"].size() == 1);
  CHECK(std::regex_match(run["started"].get<std::string>(), std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)")));
}

TEST_CASE("[R05] run.json keeps the start and the lives of its run, and of no other") {
  const Config config;
  RunRecord record;
  record.run_id = "run";
  record.job_id = "first";
  const auto first = to_json(record, config);
  record.job_id = "second";
  const auto second = nlohmann::json::parse(to_json(record, config, first));
  const auto before = nlohmann::json::parse(first);
  CHECK(second["started"] == before["started"]);
  CHECK(second["job_id"] == "second");
  REQUIRE(second["lives"].size() == 2);
  CHECK(second["lives"][0] == before["lives"][0]);
  CHECK(second["lives"][1]["job_id"] == "second");
  record.run_id = "another";
  CHECK(nlohmann::json::parse(to_json(record, config, first))["lives"].size() == 1);
  CHECK(nlohmann::json::parse(to_json(record, config, "{\"run_id\":"))["lives"].size() == 1);
}

TEST_CASE("[R05] a further life of a run is the same run on an MLflow server, and what changed is a tag") {
  httplib::Server server;
  std::string filter;
  nlohmann::json sent = nlohmann::json::array();
  server.Get("/api/2.0/mlflow/experiments/get-by-name", [](const httplib::Request&, httplib::Response& response) {
    response.set_content(R"({"experiment":{"experiment_id":"1"}})", "application/json");
  });
  server.Post("/api/2.0/mlflow/runs/(.*)", [&](const httplib::Request& request, httplib::Response& response) {
    const auto body = nlohmann::json::parse(request.body);
    std::string answer = "{}";
    if (request.path.ends_with("search")) {
      filter = body["filter"];
      answer =
          R"({"runs":[{"info":{"run_id":"r1"},"data":{"params":[{"key":"lr","value":"0.1"},{"key":"seed","value":"42"}]}}]})";
    } else {
      sent.push_back(body);
    }
    response.set_content(answer, "application/json");
  });
  const auto uri = "http://127.0.0.1:" + std::to_string(server.bind_to_any_port("127.0.0.1"));
  std::thread thread([&] { server.listen_after_bind(); });
  MlflowClient client({uri, "Default", "run", "the-run", {}, {{"lr", "0.5"}, {"seed", "42"}, {"epochs", "2"}}});
  client.begin();
  server.stop();
  thread.join();
  CHECK(filter == "tags.`troupe.run_id` = 'the-run'");
  REQUIRE(sent.size() == 3);
  CHECK((sent[0] == nlohmann::json{{"run_id", "r1"}, {"status", "RUNNING"}}));
  CHECK((sent[1]["params"] == nlohmann::json::parse(R"([{"key":"epochs","value":"2"}])")));
  CHECK((sent[2]["tags"] == nlohmann::json::parse(R"([{"key":"now.lr","value":"0.5"}])")));
}

TEST_CASE(
    "[T07] the commit of a Git tree is read from HEAD, its branch, packed branches and worktrees; what is none says "
    "nothing") {
  const std::string a(40, 'a'), b(40, 'b'), c(64, 'c'), d(40, 'd');
  testing::ScratchDirectory folder;
  const auto write = [&](const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(folder / name).parent_path());
    testing::write_text(folder / name, text);
  };
  write("tree/.git/HEAD", "ref: refs/heads/main\n");
  write("tree/deep/down/file", "");
  CHECK(git_commit(folder / "tree/deep/down").empty());  // before the first commit
  write("tree/.git/packed-refs",
        "# pack-refs with: peeled\n" + b + " refs/heads/mainly\n" + a + " refs/heads/main\n^" + d + "\n");
  CHECK(git_commit(folder / "tree/deep/down") == a);
  write("tree/.git/refs/heads/main", b + "\n");
  CHECK(git_commit(folder / "tree") == b);
  write("tree/.git/refs/heads/side", d + "\n");
  write("tree/.git/worktrees/side/HEAD", "ref: refs/heads/side\n");
  write("tree/.git/worktrees/side/commondir", "../..\n");
  write("side/.git", "gitdir: " + (folder / "tree/.git/worktrees/side") + "\n");
  CHECK(git_commit(folder / "side") == d);
  write("tree/.git/HEAD", c + "\n");
  CHECK(git_commit(folder / "tree") == c);
  for (const std::string bad : {"", "ref: ../../../etc/passwd\n", "ref: refs/../../HEAD\n", "not a commit\n"}) {
    INFO(bad);
    write("tree/.git/HEAD", bad);
    CHECK(git_commit(folder / "tree").empty());
  }
  write("side/.git", "nonsense");
  CHECK(git_commit(folder / "side").empty());
  CHECK(git_commit(folder / "not there").empty());
}

TEST_CASE("[K03] the commit is read from plain files of this user or root: no pipe, link, giant or stranger's file") {
  const std::string commit(40, 'a');
  testing::ScratchDirectory folder;
  std::filesystem::create_directories(folder / "tree/.git");
  const std::string head = folder / "tree/.git/HEAD";

  REQUIRE(::mkfifo(head.c_str(), 0600) == 0);
  std::thread writer([&] {  // waits until something opens the pipe to read
    sigset_t broken_pipe;
    sigemptyset(&broken_pipe);
    sigaddset(&broken_pipe, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
    const int fd = ::open(head.c_str(), O_WRONLY);
    (void)!::write(fd, commit.data(), commit.size());
    ::close(fd);
  });
  CHECK(git_commit(folder / "tree").empty());
  const int reader = ::open(head.c_str(), O_RDONLY | O_NONBLOCK);
  writer.join();
  ::close(reader);
  std::filesystem::remove(head);

  testing::write_text(folder / "elsewhere", commit);
  std::filesystem::create_symlink(folder / "elsewhere", head);
  CHECK(git_commit(folder / "tree").empty());
  std::filesystem::remove(head);

  testing::write_text(head, commit + std::string(1 << 20, '\n'));
  CHECK(git_commit(folder / "tree").empty());

  testing::write_text(head, commit);
  CHECK(git_commit(folder / "tree") == commit);
  if (::geteuid() == 0) {
    REQUIRE(::chown(head.c_str(), 65534, 65534) == 0);
    CHECK(git_commit(folder / "tree").empty());
  }
}

TEST_CASE("[K05] a link in a run's folder is not followed, and its target stays as it was") {
  testing::ScratchDirectory folder, elsewhere;
  const auto target = elsewhere / "file";
  const std::string kept = "kept\nhalf a line";
  testing::write_text(target, kept);
  for (const char* name : {"metrics.jsonl", "tensorboard/events", "run.json", "trace.json.partial"}) {
    std::filesystem::create_directories(std::filesystem::path(folder / name).parent_path());
    std::filesystem::create_symlink(target, folder / name);
  }
  for (const char* name : {"metrics.jsonl", "tensorboard/events"}) {
    AppendFile file(folder / name);
    CHECK_THROWS_WITH(file.append("x\n"), Catch::Contains(folder / name) && Catch::Contains("is a symbolic link"));
    CHECK(mend_and_read_tail(folder / name).empty());
  }
  CHECK(read_run_json(folder.path()).empty());
  replace_text(folder / "run.json", "{}\n");
  CHECK(read_run_json(folder.path()) == "{}\n");
  TraceFile trace(folder.path(), "job", {}, 1);
  trace.finish();
  CHECK(trace.problem().empty());
  CHECK_FALSE(std::filesystem::is_symlink(folder / "trace.json"));
  CHECK(testing::read_text(target) == kept);
}

TEST_CASE("[K05] a folder that is another user's link is refused, this user's is followed") {
  testing::ScratchDirectory folder, elsewhere;
  std::filesystem::create_directory_symlink(elsewhere.path(), folder / "run");
  testing::write_text(elsewhere / "rank-9.json", "kept");
  AppendFile(folder / "run/metrics.jsonl").append("x\n");
  CHECK(testing::read_text(elsewhere / "metrics.jsonl") == "x\n");
  CHECK_NOTHROW(refuse_foreign_link(folder / "run/"));
  if (::geteuid() != 0) {
    WARN("SKIPPED: only root can give a link away");
    return;
  }
  std::filesystem::create_directory_symlink(elsewhere.path(), folder / "trace");
  for (const char* name : {"run", "trace"}) REQUIRE(::lchown((folder / name).c_str(), 65534, 65534) == 0);
  for (const char* end : {"", "/"})
    CHECK_THROWS_WITH(refuse_foreign_link(folder / "run" + end), Catch::Contains("another user's (uid 65534)"));
  CHECK_THROWS_WITH(AppendFile(folder / "run/log").append("x\n"), Catch::Contains(folder / "run: is a symbolic link"));
  CHECK(TraceFile(folder.path(), "job", {}, 1).problem().find(folder / "trace: is a symbolic link") == 0);
  CHECK(testing::read_text(elsewhere / "rank-9.json") == "kept");
  CHECK_FALSE(std::filesystem::exists(elsewhere / "log"));
}

TEST_CASE("[K03] a record's file that is a pipe without a reader is an error, and no wait") {
  testing::ScratchDirectory folder;
  REQUIRE(::mkfifo((folder / "metrics.jsonl").c_str(), 0600) == 0);
  AppendFile file(folder / "metrics.jsonl");
  CHECK_THROWS_WITH(file.append("x\n"), Catch::Contains("metrics.jsonl: No such device or address"));
}
