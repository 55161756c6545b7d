// Whole jobs, and what TensorBoard, Prometheus and MLflow make of them.
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <filesystem>
#include <map>
#include <sstream>

#include <nlohmann/json.hpp>

#include "tests/support/count_of.hpp"
#include "tests/support/launch.hpp"
#include "tests/support/python_tool.hpp"

using namespace troupe;
using testing::Launch;

namespace {

using Words = std::vector<std::string>;

std::vector<nlohmann::json> lines_of(const std::string& path, const std::string& kind) {
  std::vector<nlohmann::json> lines;
  std::istringstream text(testing::read_text(path));
  for (std::string line; std::getline(text, line);) {
    auto entry = nlohmann::json::parse(line);
    if (entry["kind"] == kind) lines.push_back(std::move(entry));
  }
  return lines;
}

// [[step, value], ...], as read_events.py and read_mlflow.py say it.
std::map<std::int64_t, double> points(const nlohmann::json& list) {
  std::map<std::int64_t, double> values;
  for (const auto& point : list) CHECK(values.emplace(point[0], point[1]).second);
  return values;
}

std::map<std::int64_t, double> losses_in(const std::string& path) {
  std::map<std::int64_t, double> values;
  for (const auto& line : lines_of(path, "train"))
    CHECK(values.emplace(line["step"], line["loss_metrics/global_avg_loss"]).second);
  return values;
}

void check_close(const std::map<std::int64_t, double>& a, const std::map<std::int64_t, double>& b) {
  REQUIRE(a.size() == b.size());
  for (const auto& [step, value] : a) {
    INFO("step " << step);
    REQUIRE(b.contains(step));
    CHECK(b.at(step) == Approx(value).epsilon(1e-6));  // event files hold 32 bits
  }
}

int free_port() {
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

}  // namespace

TEST_CASE("[T07] a run's folder says what the run was: run.json, config.toml, metrics.jsonl, an event file") {
  Launch launch(2, {"--epochs", "1", "--log_interval", "4", "--clip_norm", "1"});
  const auto done = launch.finish();
  INFO(done.output);
  REQUIRE(done.code == 0);
  const auto run = nlohmann::json::parse(testing::read_text(launch.folder() / "run/run.json"));
  CHECK(run["world_size"] == 2);
  CHECK(run["ranks"][1]["slot"] == 1);
  CHECK(run["config"]["batch_size"] == 16);
  CHECK(run["backend"] == "shm");
  CHECK(run["versions"].contains("libtorch"));
  CHECK(std::string(run["command"][0]) == TROUPE_RANK_PROBE);
  const auto lines = lines_of(launch.folder() / "run/metrics.jsonl", "train");
  REQUIRE(lines.size() == 4);
  CHECK(lines[0]["schema"] == 1);
  CHECK(lines[0]["loss_metrics/global_max_loss"] >= lines[0]["loss_metrics/global_avg_loss"]);
  CHECK(lines[0]["memory/max_resident(GiB)"] > 0);
  CHECK(lines_of(launch.folder() / "run/metrics.jsonl", "start").size() == 1);
  // torchtitan's order.
  const auto line = done.output.substr(done.output.find("step 4/16"), 200);
  std::size_t last = 0;
  for (const std::string key : {"step ", "loss ", "grad_norm ", "memory ", "samples/s", "exposed ", "lr "}) {
    INFO(key);
    const auto at = line.find(key);
    REQUIRE(at != std::string::npos);
    CHECK(at >= last);
    last = at;
  }
  if (const auto python = testing::observe_python()) {
    const auto found = testing::run_python(*python, "read_events.py", {launch.folder() / "run/tensorboard"});
    REQUIRE(found);
    CHECK((*found)["files"] == 1);
    CHECK((*found)["bad_records"] == 0);
    check_close(points((*found)["scalars"]["loss_metrics/global_avg_loss"]),
                losses_in(launch.folder() / "run/metrics.jsonl"));
  }
}

TEST_CASE("[T07] a program with a loop of its own writes the records of a run, and keeps the console for itself") {
  const bool fails = GENERATE(false, true);
  Words words{"--probe_own_loop", "--epochs", "1", "--log_interval", "4"};
  if (fails) words.insert(words.end(), {"--fail_rank", "0", "--fail_step", "6"});
  Launch launch(2, words);
  const auto done = launch.finish();
  INFO(done.output);
  CHECK((done.code == 0) != fails);
  CHECK(done.output.find("step 4/16") == std::string::npos);
  const auto run = nlohmann::json::parse(testing::read_text(launch.folder() / "run/run.json"));
  CHECK(run["world_size"] == 2);
  CHECK(std::filesystem::exists(launch.folder() / "run/tensorboard"));
  const auto path = launch.folder() / "run/metrics.jsonl";
  const auto lines = lines_of(path, "train");
  REQUIRE(lines.size() == (fails ? 1 : 4));
  CHECK(lines[0]["step"] == 4);
  CHECK(lines[0]["epoch"] == 0);
  CHECK(lines[0]["loss_metrics/global_avg_loss"] > 0);
  CHECK(lines[0]["throughput(samples/s)"] > 0);
  const auto events = lines_of(path, "event");
  REQUIRE_FALSE(events.empty());
  CHECK(events[0]["members"].size() == 2);
  const auto end = lines_of(path, "end");
  REQUIRE(end.size() == 1);
  CHECK((end[0]["error"] == "") != fails);
}

TEST_CASE(
    "[T07] TensorBoard reads what a killed job left without a bad checksum, and a resumed run has every step once") {
  const auto python = testing::observe_python();
  if (!python) return;
  Words words{"--epochs", "40", "--log_interval", "1", "--save_every", "10", "--run_dir"};
  auto folder = std::make_shared<testing::ScratchDirectory>();
  words.push_back(*folder / "metrics");
  {
    auto more = words;
    more.insert(more.end(), {"--pause_ms", "5"});
    Launch first(2, more, {"--no-recovery"}, {}, folder);
    REQUIRE(first.wait_for("step 34/640"));
    first.signal(SIGKILL);
    first.finish();
  }
  const auto killed = testing::run_python(*python, "read_events.py", {*folder / "metrics/tensorboard"});
  REQUIRE(killed);
  INFO(killed->dump().substr(0, 300));
  CHECK((*killed)["bad_records"] == 0);
  CHECK((*killed)["scalars"]["loss_metrics/global_avg_loss"].size() >= 33);

  words[1] = "4";
  words.insert(words.end(), {"--resume", "latest"});
  Launch second(2, words, {"--no-recovery"}, {}, folder);
  const auto done = second.finish();
  INFO(done.output);
  REQUIRE(done.code == 0);
  const auto found = testing::run_python(*python, "read_events.py", {*folder / "metrics/tensorboard"});
  REQUIRE(found);
  CHECK((*found)["files"] == 2);
  CHECK((*found)["bad_records"] == 0);
  const auto losses = points((*found)["scalars"]["loss_metrics/global_avg_loss"]);
  REQUIRE(losses.size() == 64);
  CHECK(losses.begin()->first == 1);
  // The start line says where the file goes on: what stands above it about later steps is void.
  const auto starts = lines_of(*folder / "metrics/metrics.jsonl", "start");
  REQUIRE(starts.size() == 2);
  CHECK(starts[1]["step"].get<int>() % 10 == 0);
  CHECK(starts[1]["step"] >= 20);
}

TEST_CASE("[T07] a rank 0 that dies and is replaced leaves one line a step and a second event file") {
  testing::ScratchDirectory folder;
  const Words words{"--epochs", "2", "--log_interval", "1", "--run_dir", folder / "metrics"};
  Launch launch(2, words, {}, {{"TROUPE_FAULT", "slot=0,step=17,at=collective"}});
  const auto done = launch.finish();
  INFO(done.output);
  REQUIRE(done.code == 0);
  REQUIRE_THAT(done.output, Catch::Contains("1 rank replaced"));
  const auto losses = losses_in(folder / "metrics/metrics.jsonl");
  REQUIRE(losses.size() == 32);
  if (const auto python = testing::observe_python()) {
    const auto found = testing::run_python(*python, "read_events.py", {folder / "metrics/tensorboard"});
    REQUIRE(found);
    CHECK((*found)["files"] == 2);
    check_close(points((*found)["scalars"]["loss_metrics/global_avg_loss"]), losses);
  }
}

TEST_CASE(
    "[T07] a log that cannot be written and an MLflow server that is away are told once each, and training goes on") {
  testing::ScratchDirectory folder;
  std::filesystem::create_directories(folder / "metrics");
  std::filesystem::create_symlink("/dev/full", folder / "metrics/metrics.jsonl");
  Launch launch(2, {"--epochs", "2", "--log_interval", "2", "--run_dir", folder / "metrics", "--mlflow_uri",
                    "http://127.0.0.1:1", "--pause_ms", "20"});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK(testing::count_of(done.output, "metrics: metrics.jsonl: ") == 1);
  CHECK_THAT(done.output,
             Catch::Contains("is a symbolic link, which is not followed") && Catch::Contains("training goes on"));
  CHECK(testing::count_of(done.output, "metrics: MLflow: ") == 1);
  CHECK_THAT(done.output, Catch::Contains("leave --mlflow_uri out"));
  CHECK_THAT(done.output, Catch::Contains("step 32/32"));
}

TEST_CASE("[K05] a link at any name in a job's folder leaves its target as it was") {
  const auto [name, code, says] = GENERATE(table<std::string, int, std::string>({
      {"rank0.log", 74, "rank0.log: is a symbolic link, which is not followed"},
      {"lock", 74, "lock: is a symbolic link, which is not followed"},
      {"journal", 0, ""},
      {"config.toml", 0, ""},
      {"run.json", 0, ""},
      {"trace.json.partial", 0, ""},
      {"metrics.jsonl", 2, "it holds another run's metrics.jsonl"},
  }));
  INFO(name);
  auto folder = std::make_shared<testing::ScratchDirectory>();
  std::filesystem::create_directories(*folder / "run");
  testing::write_text(*folder / "target", "kept");
  std::filesystem::create_symlink(*folder / "target", *folder / ("run/" + name));
  Launch launch(2, {"--epochs", "1", "--profile", "steps=4:6"}, {}, {}, folder);
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == code);
  CHECK_THAT(done.output, Catch::Contains(says));
  CHECK(testing::read_text(*folder / "target") == "kept");
}

TEST_CASE("[T07] Prometheus scrapes a job that runs, and a port that is taken ends one before its first step") {
  const auto port = std::to_string(free_port());
  Launch launch(2, {"--epochs", "400", "--log_interval", "1", "--pause_ms", "10", "--metrics_port", port});
  REQUIRE(launch.wait_for("step 5/"));
  const auto found = testing::run_python("/usr/bin/python3", "scrape.py", {port});
  if (found) {
    CHECK((*found)["troupe_step"] >= 4);
    CHECK((*found)["troupe_loss"] > 0);
    CHECK((*found)["troupe_samples_per_second"] > 0);
    CHECK((*found)["troupe_run_info"] == 1);
  }
  Launch second(1, {"--epochs", "400", "--metrics_port", port});
  const auto refused = second.finish();
  INFO(refused.output);
  CHECK(refused.code == 69);
  CHECK_THAT(refused.output,
             Catch::Contains("metrics_port: port " + port) && Catch::Contains("choose another --metrics_port"));
  CHECK(refused.output.find("epoch 1/") == std::string::npos);
  launch.signal(SIGINT);
  CHECK(launch.finish().code == 130);
}

TEST_CASE(
    "[T07] an MLflow server gets the run, its parameters and every interval, and a rank 0 that takes over goes on with "
    "the same run") {
  const auto python = testing::observe_python();
  if (!python) return;
  testing::ScratchDirectory folder;
  const auto uri = "http://127.0.0.1:" + std::to_string(free_port());
  testing::RunningProcess server(
      {*python, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", uri.substr(uri.rfind(':') + 1), "--workers",
       "1", "--backend-store-uri", "sqlite:///" + (folder / "mlflow.db"), "--default-artifact-root",
       folder / "artifacts"},
      std::map<std::string, std::string>{{"MLFLOW_DISABLE_TELEMETRY", "true"},
                                         {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false"}});
  const bool serves = server.wait_for("Application startup complete");
  INFO(server.output());
  REQUIRE(serves);

  Launch launch(2,
                {"--epochs", "2000", "--log_interval", "20", "--pause_ms", "10", "--mlflow_uri", uri,
                 "--mlflow_experiment", "probe", "--run_dir", folder / "metrics"},
                {});
  REQUIRE(launch.wait_for("step 20/"));  // its process is known
  const auto has_metrics = [&] {
    const auto runs = testing::run_python(*python, "read_mlflow.py", {uri, "probe"});
    return runs && !runs->empty() && !(*runs)[0]["metrics"].empty();
  };
  for (int i = 0; i < 20 && !has_metrics(); ++i) launch.pass(std::chrono::milliseconds(100));
  const auto first_rank = testing::pid_said_by(launch.output(), "[rank 0] pid ");
  REQUIRE(first_rank > 0);
  ::kill(first_rank, SIGKILL);
  REQUIRE(launch.wait_for("1 rank replaced"));
  const auto mark = launch.output().size();
  launch.wait_until([&] { return testing::count_of(launch.output().substr(mark), "[rank 0] epoch") > 2; });
  launch.signal(SIGINT);
  const auto done = launch.finish();
  INFO(done.output);
  REQUIRE(done.code == 130);
  CHECK(testing::count_of(done.output, "metrics: MLflow") == 0);
  const auto runs = testing::run_python(*python, "read_mlflow.py", {uri, "probe"});
  REQUIRE(runs);
  INFO(runs->dump().substr(0, 2000));
  REQUIRE(runs->size() == 1);
  const auto& run = (*runs)[0];
  CHECK(run["status"] == "FINISHED");
  CHECK(run["params"]["batch_size"] == "16");
  CHECK(run["params"]["strategy"] == "ddp");
  CHECK(run["tags"].contains("troupe.run_id"));
  check_close(points(run["metrics"]["loss_metrics/global_avg_loss"]), losses_in(folder / "metrics/metrics.jsonl"));
  CHECK(run["metrics"].contains("time_metrics/data_loading_percent"));
  server.signal(SIGTERM);
  CHECK(server.finish().code >= 0);
}

TEST_CASE(
    "[T08] a run whose ranks are unequal warns of it and of the waiting, once each, with the remedy, and its records "
    "keep that") {
  const bool own_loop = GENERATE(false, true);
  // Rank 1 takes three times as long: rank 0 waits for two thirds of a step.
  Words words{"--epochs", "1", "--batch_size", "16", "--log_interval", "2", "--pause_ms", "150"};
  for (const auto* word : {"--fail_rank", "1", "--fail_step", "0", "--fail_how", "slow"}) words.emplace_back(word);
  if (own_loop) words.insert(words.end(), {"--probe_own_loop", "true"});
  Launch launch(2, words);
  const auto done = launch.finish();
  INFO(done.output);
  REQUIRE(done.code == 0);
  CHECK(testing::count_of(done.output, "warning: Compute waits for communication ") == 1);
  CHECK(testing::count_of(done.output, "warning: Rank 1 (localhost) takes ") +
            testing::count_of(done.output, "warning: Rank 1 takes ") ==
        1);
  CHECK_THAT(done.output, Catch::Contains("; try: make the ranks equal first") &&
                              Catch::Contains("; try: look for other work, heat"));
  std::size_t kept = 0;
  for (const auto& event : lines_of(launch.folder() / "run/metrics.jsonl", "event"))
    kept += event["event"] == "warning" ? 1 : 0;
  CHECK(kept == 2);
}
