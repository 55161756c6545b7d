#include "launch/loop/after_save.hpp"

#include <cstdlib>
#include <fstream>
#include <thread>

#include "launch/program/job.hpp"
#include "tensor_io/data/datasets.hpp"
#include "tests/catch.hpp"
#include "tests/support/proc_file.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;

namespace {

using Milliseconds = AfterSave::Milliseconds;

std::vector<AfterSaveEnd> ends_of(const std::string& command, Milliseconds timeout = Milliseconds(60'000)) {
  AfterSave after({command, timeout, "/runs/a"});
  after.add({7, "/runs/a/checkpoints/step-00000007"});
  after.wait();
  return after.take_ended();
}

// One that has ended and that its new parent has not reaped does not.
bool lives(pid_t process) {
  const auto facts = testing::proc_file("/proc/" + std::to_string(process) + "/status");
  return !facts.empty() && facts.find("State:\tZ") == std::string::npos;
}

// A command reads a line of a pipe: an event of the test, not a time.
struct Gate {
  explicit Gate(const testing::ScratchDirectory& folder) : path(folder / "gate") {
    REQUIRE(std::system(("mkfifo " + path).c_str()) == 0);
  }
  void open() const { std::ofstream(path) << "go\n"; }
  const std::string path;
};

}  // namespace

TEST_CASE("[S04] the command after a save has the checkpoint in its environment, and nothing of the job") {
  ::setenv("TROUPE_KEYS", "/secret", 1);
  ::setenv("RANK", "3", 1);
  const auto ends = ends_of("echo \"$TROUPE_STEP $TROUPE_CHECKPOINT $TROUPE_RUN_DIR keys=$TROUPE_KEYS rank=$RANK\"");
  ::unsetenv("TROUPE_KEYS");
  ::unsetenv("RANK");
  REQUIRE(ends.size() == 1);
  CHECK(ends[0].succeeded);
  CHECK(ends[0].text == "after_save, step 7: exit code 0: 7 /runs/a/checkpoints/step-00000007 /runs/a keys= rank=");
}

TEST_CASE("[S04] a command that fails is reported with its exit code and its last line, on either stream") {
  const auto ends = ends_of("echo one; printf 'no room' >&2; exit 3");
  REQUIRE(ends.size() == 1);
  CHECK_FALSE(ends[0].succeeded);
  CHECK(ends[0].text == "after_save, step 7: exit code 3: no room");
  CHECK(ends_of("kill -9 $$")[0].text == "after_save, step 7: signal 9 (Killed)");
  CHECK_THAT(ends_of("/no/such/program")[0].text, Catch::Contains("exit code 127"));
}

TEST_CASE("[S04] a command that takes too long is ended with all that it started") {
  testing::ScratchDirectory folder;
  const auto ends =
      ends_of("(while :; do sleep 1000; done) & echo $! > " + folder.path() + "/child; wait", Milliseconds(300));
  REQUIRE(ends.size() == 1);
  CHECK_FALSE(ends[0].succeeded);
  CHECK(ends[0].text == "after_save, step 7: was stopped after 300 ms (after_save_timeout)");
  const auto child = std::stoi(testing::read_text(folder / "child"));
  while (lives(child)) std::this_thread::yield();
}

TEST_CASE("[S04] one command runs at a time, and of the checkpoints that wait the newest is taken") {
  testing::ScratchDirectory folder;
  const Gate gate(folder);
  const auto log = folder / "log";
  AfterSave after({"read line < " + gate.path + "; echo $TROUPE_STEP >> " + log, Milliseconds(60'000), ""});
  after.add({1, "a"});
  gate.open();  // returns once the first command reads
  after.wait();
  after.add({2, "b"});
  std::ofstream second(gate.path);  // the second one has begun
  after.add({3, "c"});
  after.add({4, "d"});
  second << "go\n";
  second.close();
  while (testing::read_text(log) != "1\n2\n") std::this_thread::yield();  // it reads no more
  gate.open();
  after.wait();
  CHECK(testing::read_text(log) == "1\n2\n4\n");
  const auto ends = after.take_ended();
  REQUIRE(ends.size() == 3);
  CHECK(ends[2].step == 4);
  CHECK(after.take_ended().empty());
}

TEST_CASE("[S04] a job that fails ends the command, and does not wait for it") {
  testing::ScratchDirectory folder;
  const Gate gate(folder);
  {
    AfterSave after({"echo $$ > " + folder.path() + "/shell; read line < " + gate.path + "; exec sleep 1000",
                     Milliseconds(600'000), ""});
    after.add({1, "a"});
    gate.open();
    after.add({2, "b"});
  }
  CHECK_FALSE(lives(std::stoi(testing::read_text(folder / "shell"))));
}

TEST_CASE("[S04] a job of two ranks runs the command once for a checkpoint, and waits for the last one") {
  testing::ScratchDirectory folder;
  std::vector<std::string> words{"program",
                                 "--ranks",
                                 "2",
                                 "--max_steps",
                                 "2",
                                 "--run_dir",
                                 folder / "run",
                                 "--save_every",
                                 "0",
                                 "--after_save",
                                 "cat \"$TROUPE_CHECKPOINT/manifest.json\" > " + (folder / "copy") + "; echo done"};
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  Job job;
  job.model = [](const Config&) { return std::make_shared<torch::nn::LinearImpl>(1, 1); };
  job.data = [](const Config&) {
    return Datasets{std::make_shared<TensorDataset>(at::ones({256, 1}), at::ones({256, 1}), "ones"), {}};
  };
  job.loss = [](torch::nn::Module& model, const Batch& batch, const Config&) -> Loss {
    return torch::mse_loss(dynamic_cast<torch::nn::LinearImpl&>(model).forward(batch.input), batch.target);
  };
  CHECK(run(job, static_cast<int>(arguments.size()), arguments.data()) == 0);
  CHECK_THAT(testing::read_text(folder / "copy"), Catch::Contains("\"step\""));
  CHECK_THAT(testing::read_text(folder / "run/metrics.jsonl"),
             Catch::Contains("after_save, step 2: exit code 0: done"));
}

TEST_CASE("[S04] [L06] the wait for a command says at once that it still runs, and nothing once none does") {
  const testing::ScratchDirectory folder;
  const Gate gate(folder);
  int signs = 0;
  AfterSave after({"read line < '" + gate.path + "'", Milliseconds(60'000), "", [&] {
                     ++signs;
                     std::thread([&gate] { gate.open(); }).detach();
                   }});
  after.add({7, "/runs/a/checkpoints/step-00000007"});
  after.wait();
  CHECK(signs == 1);
  after.wait();
  CHECK(signs == 1);
}
