// What a rank does for its trace, beside recording it: gathering, and what that must not disturb.
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <sstream>
#include <thread>

#include "actors/metrics/metric.hpp"
#include "launch/loop/loop_trace.hpp"
#include "launch/program/job.hpp"
#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/communicator/collective_ledger.hpp"
#include "tensor_io/data/datasets.hpp"
#include "tests/catch.hpp"
#include "tests/support/rank_threads.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/scratch_directory.hpp"
#include "tests/support/trace_checks.hpp"

using namespace troupe;

namespace {

Config traced(const std::string& run_dir, const std::string& steps = "0:1") {
  Config config;
  config.profile = "steps=" + steps + ",operators=off";
  config.run_dir = run_dir;
  return config;
}

std::shared_ptr<torch::nn::Module> small_model() { return std::make_shared<torch::nn::LinearImpl>(1, 1); }

// As a slow disk.
class SlowGathering final : public FaultWatch {
 public:
  void at(const char* place, std::int64_t) override {
    if (std::string(place) == "trace") std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
};

// By the wall clock, in seconds; -1: the records have no such event.
double time_of_event(const std::string& records, const std::string& event) {
  std::istringstream lines(testing::read_text(records));
  for (std::string line; std::getline(lines, line);) {
    const auto record = record_from_json(line);
    if (record.event == event) return record.wall_time;
  }
  return -1;
}

// One step with one span.
void record_a_step(LoopTrace& trace) {
  trace.set_model(small_model());
  trace.update(0);
  TraceEvent step;
  step.kind = TraceEvent::Kind::step;
  step.set_name("ProfilerStep#0");
  step.begin_ns = step.end_ns = steady_now_ns();
  trace.with_recorder({}).trace->track("compute").add(step);
  trace.update(1);
}

Membership hosts_of(int ranks) {
  Membership membership;
  membership.members.resize(static_cast<std::size_t>(ranks));
  for (auto& member : membership.members) member.host = "here";
  return membership;
}

std::shared_ptr<TensorDataset> zeros() {
  return std::make_shared<TensorDataset>(torch::zeros({64, 4}), torch::zeros({64}, torch::kLong));
}

int own_program(const std::vector<std::string>& flags, const std::function<void(Rank&)>& body) {
  std::vector<std::string> words{"probe", "--max_steps=6", "--epochs=1", "--batch_size=8"};
  words.insert(words.end(), flags.begin(), flags.end());
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  return troupe::main(static_cast<int>(arguments.size()), arguments.data(), body);
}

}  // namespace

TEST_CASE("[T08] a trace's window is open for its steps and no others, also after all went back") {
  LoopTrace trace(traced({}, "1:3"), {});
  trace.set_model(small_model());
  for (const std::int64_t step : {0, 1, 2, 3, 4, 1, 2, 3, 9}) {
    INFO(step);
    trace.update(step);
    CHECK(trace.with_recorder({}).trace->recording() == (step == 1 || step == 2));
  }
}

TEST_CASE(
    "[T08] while ranks hand over their traces, each waits in one collective for one other's part, never for those of "
    "all") {
  constexpr int kRanks = 5;
  testing::ScratchDirectory folder;
  std::vector<std::vector<CollectiveRecord>> ledgers(kRanks);
  test::run_ranks({test::all_backends()[0], kRanks}, [&](Communicator& communicator) {
    LoopTrace trace(traced(folder.path()), {.job_id = "job"});
    record_a_step(trace);
    (void)trace.gather(communicator, hosts_of(kRanks));
    ledgers[static_cast<std::size_t>(communicator.rank())] = communicator.ledger().snapshot();
  });
  for (int rank = 1; rank < kRanks; ++rank) {
    INFO("rank " << rank);
    int before = 0, after = 0;
    bool sent = false;
    for (const auto& record : ledgers[static_cast<std::size_t>(rank)]) {
      if (record.label.data() != std::string("trace")) continue;
      sent = sent || record.kind == CollectiveKind::send;
      if (record.kind == CollectiveKind::barrier) ++(sent ? after : before);
    }
    CHECK(before == rank);  // the turns of those before it
    CHECK(after == kRanks - rank + 1);
  }
  CHECK(testing::ParsedTrace(testing::read_text(folder / "trace.json")).processes.size() == kRanks);
}

TEST_CASE("[T08] a rank that can write its trace nowhere says that it is lost, and why") {
  testing::ScratchDirectory folder;
  testing::write_text(folder / "file", "");
  LoopTrace trace(traced(folder / "file"), {.job_id = "job"});
  record_a_step(trace);
  CHECK(trace.write_alone(3, "h") ==
        "trace: the part of rank 3 is lost: " + (folder / "file") + "/trace: Not a directory");
  CHECK(trace.write_alone(3, "h").empty());
}

TEST_CASE("[T08] gathering the trace is no part of the next step's time") {
  testing::ScratchDirectory folder;
  Config config;
  config.ranks = 2;
  config.batch_size = 8;
  config.epochs = 1;
  config.run_dir = folder.path();
  config.profile = "steps=1:3,operators=off";
  double next_ms = -1, ended = -1;
  const auto errors = testing::run_program(2, config, [&](Rank& rank) {
    set_fault_watch(std::make_shared<SlowGathering>());
    rank.keep_records();
    auto model = rank.distribute([] { return torch::nn::Linear(4, 2); });
    const auto optimizer = rank.make_optimizer(*model);
    for (const auto& batch : rank.loader(zeros())) {
      rank.backward(torch::nn::functional::cross_entropy(model->forward(batch.input), batch.target));
      const auto report = rank.step(*optimizer);
      if (!rank.is_main() || report.step != 3) continue;
      next_ms = report.step_ms;
      ended = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    }
    rank.end_loop({});
  });
  for (const auto& error : errors) CHECK(error.empty());
  REQUIRE(next_ms > 0);
  const auto told = time_of_event(folder / "metrics.jsonl", "trace");
  REQUIRE(told > 0);
  CHECK(next_ms <= 1000 * (ended - told));  // it began after the trace was told of
}

TEST_CASE(
    "[T08] what Kineto is to keep to itself is set in the environment before the program's body, which may have "
    "threads") {
  ::unsetenv("KINETO_LOG_LEVEL");
  testing::ScratchDirectory folder;
  bool set = false;
  CHECK(own_program({"--profile=steps=1:2", "--run_dir=" + folder.path()},
                    [&](Rank&) { set = std::getenv("KINETO_LOG_LEVEL") != nullptr; }) == 0);
  CHECK(set);
  ::unsetenv("KINETO_LOG_LEVEL");
  CHECK(own_program({"--profile=steps=1:2,operators=off", "--run_dir=" + folder.path()},
                    [&](Rank&) { set = std::getenv("KINETO_LOG_LEVEL") != nullptr; }) == 0);
  CHECK_FALSE(set);
}

TEST_CASE(
    "[T07] the folder of a program with a loop of its own is there before its first step, with a loader or without") {
  testing::ScratchDirectory folder;
  bool early = false;
  const int code = own_program({"--run_dir=" + (folder / "run")}, [&](Rank& rank) {
    auto model = rank.distribute([] { return torch::nn::Linear(4, 2); });
    early = std::filesystem::exists(folder / "run/run.json") && std::filesystem::exists(folder / "run/config.toml");
    const auto optimizer = rank.make_optimizer(*model);
    rank.backward(model->forward(torch::zeros({8, 4})).sum());
    rank.step(*optimizer);
  });
  CHECK(code == 0);
  CHECK(early);
}
