// Whole jobs with --profile steps=…, and what HolisticTraceAnalysis makes of their traces.
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "tests/support/count_of.hpp"
#include "tests/support/launch.hpp"
#include "tests/support/python_tool.hpp"
#include "tests/support/trace_checks.hpp"

using namespace troupe;
using testing::Launch;
using testing::ParsedTrace;

namespace {

using Strings = std::vector<std::string>;

std::string line_with(const std::string& output, const std::string& text) {
  const auto at = output.find(text);
  return at == std::string::npos ? "" : output.substr(at, output.find('\n', at) - at);
}

// HTA's own number for each rank is the one that the trace says of itself.
void check_overlap_with_hta(const std::string& run) {
  const auto python = testing::observe_python();
  if (!python) return;
  const auto found = testing::run_python(*python, "read_trace.py", {run + "/trace"});
  REQUIRE(found);
  const ParsedTrace trace(testing::read_text(run + "/trace.json"));
  const auto ranks = trace.other["ranks"];
  REQUIRE(found->size() == ranks.size());
  for (const auto& rank : ranks) {
    INFO(rank.dump() << " " << found->dump());
    CHECK((*found)[std::to_string(rank["rank"].get<int>())].get<double>() ==
          Approx(100 * rank["overlap"].get<double>()).margin(1));
  }
}

// By process and thread: how many spans.
nlohmann::json spans_of(const ParsedTrace& trace) {
  nlohmann::json found = nlohmann::json::object();
  for (const auto& [thread, name] : trace.names) {
    const auto spans = trace.spans.find(thread);
    found[trace.processes.at(thread.first)][name] = spans == trace.spans.end() ? 0 : spans->second.size();
  }
  return found;
}

}  // namespace

TEST_CASE(
    "[T08] Perfetto and the viewer of chrome://tracing show every thread, span and arrow of a trace, and complain of "
    "nothing") {
  const auto python = testing::observe_python();
  const char* chromium = std::getenv("TROUPE_CHROMIUM");
  if (chromium == nullptr) WARN("SKIPPED: TROUPE_CHROMIUM names no browser; ./dev observe has one");
  if (!python || chromium == nullptr) return;
  Launch launch(2, {"--epochs", "1", "--probe_model", "wide", "--probe_width", "64", "--profile", "steps=4:8"});
  const auto done = launch.finish();
  INFO(done.output);
  REQUIRE(done.code == 0);
  const auto path = launch.folder() / "run/trace.json";
  const auto found = testing::run_python(*python, "view_trace.py", {chromium, path});
  if (!found) return;
  const ParsedTrace trace(testing::read_text(path));
  const auto wanted = spans_of(trace);
  REQUIRE(wanted.size() == 2);
  CHECK(wanted["rank 1 (localhost)"].size() >= 6);
  for (const std::string viewer : {"perfetto", "catapult"}) {
    const auto& shown = (*found)[viewer];
    INFO(viewer << ": " << shown.dump());
    CHECK(shown["processes"] == wanted);
    CHECK(shown["arrows"] == trace.arrows.size());
    const auto has = [&](const std::string& text) {
      return std::find(shown["shown"].begin(), shown["shown"].end(), text) != shown["shown"].end();
    };
    for (const std::string thread : {"compute", "blocks", "operators", "reducer", "reducer's communicators"}) {
      INFO(thread);
      const auto is_thread = [&, thread](const auto& named) { return named.second == thread; };
      const auto number = std::find_if(trace.names.begin(), trace.names.end(), is_thread)->first.second;
      CHECK(has(viewer == "perfetto" ? thread + " " + std::to_string(number) : thread));
    }
  }
  CHECK((*found)["perfetto"]["errors"] == nlohmann::json::object());
  CHECK((*found)["catapult"]["warnings"] == nlohmann::json::array());
}

TEST_CASE(
    "[T08] a job's window of steps is one trace of all ranks, with phases, blocks, operators, collectives and "
    "messages") {
  const std::string strategy = GENERATE("ddp", "fsdp");
  INFO(strategy);
  Launch launch(
      2, {"--epochs", "1", "--probe_model", "wide", "--probe_width", "256", "--strategy", strategy, "--backend",
          strategy == "ddp" ? "shm" : "gloo", "--log_interval", "1", "--prefetch", "1", "--profile", "steps=4:10"});
  const auto done = launch.finish();
  INFO(done.output);
  REQUIRE(done.code == 0);
  const auto line = line_with(done.output, "trace: ");
  CHECK(line.find("run/trace.json: 2 ranks, steps 4 to 9, ") != std::string::npos);
  CHECK(line.find("; overlap ") != std::string::npos);
  CHECK(testing::count_of(done.output, "trace: ") == 1);
  const ParsedTrace trace(testing::read_text(launch.folder() / "run/trace.json"));
  CHECK(trace.processes.size() == 2);
  for (const int rank : {0, 1}) {
    INFO("rank " << rank);
    for (int step = 4; step < 10; ++step)
      CHECK(trace.count(rank, "compute", "ProfilerStep#" + std::to_string(step)) == 1);
    CHECK(trace.count(rank, "compute", "ProfilerStep") == 6);
    for (const std::string phase : {"data", "vote", "wait for gradients"})
      CHECK(trace.count(rank, "compute", phase) == 6);
    for (const std::string phase : {"forward", "backward", "optimizer"})
      CHECK(trace.count(rank, "compute", phase) >= 6);
    CHECK(trace.count(rank, "operators", "aten::addmm") > 0);
    CHECK(trace.count(rank, "reducer", strategy == "ddp" ? "all_reduce (bucket 0)" : "reduce_scatter (flat 0)") == 6);
    CHECK(trace.count(rank, "reducer's communicators", "ncclDevKernel_") >= 6);
    CHECK(trace.count(rank, "data loader", "load batch") > 0);
    std::size_t forward = 0, backward = 0;
    for (const auto& span : trace.of(rank, "blocks")) {
      forward += span.name.ends_with(" forward") ? 1 : 0;
      backward += span.name.ends_with(" backward") ? 1 : 0;
    }
    CHECK(forward == 6 * 16);
    CHECK(backward == 6 * 16);
  }
  if (strategy == "fsdp") CHECK(trace.count(0, "gathers", "all_gather") > 0);
  for (const std::string message : {"BucketReady", "BucketsReduced", "BatchLoaded"})
    CHECK(trace.arrow_names.contains(message));
  // Within a step both ranks vote at the same time: their clocks are one.
  CHECK(trace.other["ranks"][1]["clock_error_us"] == 0);
  check_overlap_with_hta(launch.folder() / "run");
  // It is among the run's events, and the report leads to it.
  CHECK(testing::read_text(launch.folder() / "run/metrics.jsonl").find("\"event\":\"trace\"") != std::string::npos);
  const auto report = testing::RunningProcess({TROUPE_PROGRAM, "report", launch.folder() / "run"}).finish();
  CHECK(report.code == 0);
  CHECK(testing::read_text(launch.folder() / "run/report.html").find("href=\"trace.json\"") != std::string::npos);
}

TEST_CASE(
    "[T08] a program with a loop of its own, and simulated ranks, have their trace; a run that ends within the window, "
    "too") {
  testing::ScratchDirectory folder;
  const bool own = GENERATE(false, true);
  Strings words{
      TROUPE_RANK_PROBE, "--ranks",          "2",          "--batch_size",  "16",   "--epochs",      "1",   "--run_dir",
      folder / "run",    "--checkpoint_dir", folder / "c", "--probe_model", "wide", "--probe_width", "256", "--profile",
      "steps=14:100"};
  if (own) words.push_back("--probe_own_loop");
  const auto done = testing::RunningProcess(words).finish();
  INFO(done.output);
  REQUIRE(done.code == 0);
  CHECK(line_with(done.output, "trace: ").find("2 ranks, steps 14 to 15, ") != std::string::npos);
  const ParsedTrace trace(testing::read_text(folder / "run/trace.json"));
  CHECK(trace.processes.size() == 2);
  CHECK(trace.count(1, "compute", "ProfilerStep") == 2);
  CHECK(trace.count(0, "operators", "aten::") > 0);  // Kineto is one per process
  CHECK(trace.count(1, "operators", "aten::") == 0);
  if (own) CHECK(trace.count(1, "compute", "the probe's own span") == 2);
  check_overlap_with_hta(folder / "run");
}

TEST_CASE("[T08] a rank that dies within the window leaves a whole trace of the others, and its successor's part") {
  Launch launch(2, {"--epochs", "1", "--profile", "steps=4:9"}, {},
                {{"TROUPE_FAULT", "slot=1,step=6,at=vote,signal=9"}});
  const auto done = launch.finish();
  INFO(done.output);
  REQUIRE(done.code == 0);
  const auto line = line_with(done.output, "trace: ");
  CHECK(line.find("2 ranks, steps 4 to 8, ") != std::string::npos);
  CHECK(line.find("rank 1: from step 6 on, the steps before are lost") != std::string::npos);
  const ParsedTrace trace(testing::read_text(launch.folder() / "run/trace.json"));
  CHECK(trace.count(0, "compute", "ProfilerStep#8") == 1);
  CHECK(trace.count(1, "compute", "ProfilerStep#8") == 1);
  CHECK(trace.count(1, "compute", "ProfilerStep#5") == 0);
}

TEST_CASE("[T08] a rank that dies while the trace is gathered is replaced, whatever the loop takes its batches from") {
  const std::string batches = GENERATE("loader", "uneven", "own");
  INFO(batches);
  Launch launch(2, {"--epochs", "1", "--probe_own_loop", "true", "--probe_batches", batches, "--profile", "steps=4:9"},
                {}, {{"TROUPE_FAULT", "slot=1,step=9,at=trace,signal=9"}});
  const auto done = launch.finish();
  INFO(done.output);
  REQUIRE(done.code == 0);
  CHECK(testing::count_of(done.output, "interrupted: ") == 1);  // a second recovery would make good what the first left
  CHECK(testing::count_of(done.output, "trace: ") == 1);
  const auto line = line_with(done.output, "trace: ");
  CHECK(line.find("2 ranks, steps 4 to 8, ") != std::string::npos);
  CHECK(line.find("rank 1: nothing, since it joined later") != std::string::npos);
  const ParsedTrace trace(testing::read_text(launch.folder() / "run/trace.json"));
  CHECK(trace.count(0, "compute", "ProfilerStep") == 5);
  CHECK(trace.count(1, "compute", "ProfilerStep") == 0);
}

TEST_CASE(
    "[T08] a rank 0 that dies while the trace is gathered takes its part along, and its successor writes the others'") {
  const bool own = GENERATE(false, true);
  Strings words{"--epochs", "1", "--profile", "steps=4:9"};
  if (own) words.insert(words.end(), {"--probe_own_loop", "true"});
  Launch launch(2, words, {}, {{"TROUPE_FAULT", "slot=0,step=9,at=trace,signal=9"}});
  const auto done = launch.finish();
  INFO(done.output);
  REQUIRE(done.code == 0);
  CHECK(testing::count_of(done.output, "interrupted: ") == 1);
  CHECK(testing::count_of(done.output, "trace: ") == 1);
  CHECK(line_with(done.output, "trace: ").find("rank 0: nothing, since it joined later") != std::string::npos);
  CHECK(ParsedTrace(testing::read_text(launch.folder() / "run/trace.json")).count(1, "compute", "ProfilerStep") == 5);
  CHECK(testing::read_text(launch.folder() / "run/metrics.jsonl").find("\"event\":\"trace\"") != std::string::npos);
}

TEST_CASE(
    "[T08] where all go back to a snapshot while the trace is gathered, the step says that it is to be repeated") {
  Launch launch(2,
                {"--probe_own_loop", "true", "--probe_batches", "own", "--probe_model", "wide", "--probe_width", "64",
                 "--strategy", "fsdp", "--fsdp_mapped", "false", "--snapshot_every", "3", "--profile", "steps=4:8"},
                {}, {{"TROUPE_FAULT", "slot=1,step=8,at=trace,signal=9"}});
  const auto done = launch.finish();
  INFO(done.output);
  REQUIRE(done.code == 0);
  CHECK(done.output.find("[rank 0] the probe's step 7 is to be repeated, 6 are done") != std::string::npos);
  CHECK(testing::count_of(done.output, "interrupted: ") == 1);
  CHECK(testing::count_of(done.output, "trace: ") == 1);
  const ParsedTrace trace(testing::read_text(launch.folder() / "run/trace.json"));
  CHECK(trace.count(0, "compute", "ProfilerStep#6") == 2);  // what was done again is there again
  CHECK(trace.count(1, "compute", "ProfilerStep#6") == 1);
}

TEST_CASE("[T08] a job that fails within the window leaves a whole trace of each rank that is left") {
  Launch launch(2, {"--epochs", "1", "--profile", "steps=4:9"}, {"--no-recovery"},
                {{"TROUPE_FAULT", "slot=1,step=6,at=vote,signal=9"}});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code != 0);
  CHECK(done.output.find("trace: the job ended within the window; the part of rank 0 is ") != std::string::npos);
  const ParsedTrace trace(testing::read_text(launch.folder() / "run/trace/rank-0.json"));
  CHECK(trace.count(0, "compute", "ProfilerStep#5") == 1);
  CHECK_FALSE(std::filesystem::exists(launch.folder() / "run/trace.json"));
}

TEST_CASE("[T08] a trace that cannot be written is told once, and training goes on") {
  auto folder = std::make_shared<testing::ScratchDirectory>();
  std::filesystem::create_directories(*folder / "run/trace.json.partial/full");
  Launch launch(2, {"--epochs", "1", "--profile", "steps=4:6"}, {"--no-recovery"}, {}, folder);
  const auto done = launch.finish();
  INFO(done.output);
  REQUIRE(done.code == 0);
  CHECK(testing::count_of(done.output, "trace: cannot be written: ") == 1);
  CHECK(line_with(done.output, "trace: cannot").find("Is a directory; training goes on") != std::string::npos);
  CHECK(done.output.find("step 16") == std::string::npos);  // log_interval 10
  CHECK(std::filesystem::exists(launch.folder() / "checkpoints/latest"));
}

TEST_CASE("[T08] without a window there is no trace, and a window that the run does not reach says so by its absence") {
  const std::string profile = GENERATE("off", "true", "steps=100:110");
  Launch launch(2, {"--epochs", "1", "--profile", profile});
  const auto done = launch.finish();
  INFO(done.output);
  REQUIRE(done.code == 0);
  CHECK(done.output.find("trace: ") == std::string::npos);
  CHECK_FALSE(std::filesystem::exists(launch.folder() / "run/trace.json"));
}
