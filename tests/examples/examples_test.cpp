// The image classifier as a user starts it.
#include <ATen/ops/equal.h>

#include <cstdio>
#include <random>

#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tensor_io/communicator/choice/device_selection.hpp"
#include "tests/catch.hpp"
#include "tests/support/running_process.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;

#ifdef TROUPE_IMAGE_CLASSIFIER
namespace {

testing::Finished classify(const testing::ScratchDirectory& folder, const std::vector<std::string>& arguments) {
  std::vector<std::string> command{TROUPE_IMAGE_CLASSIFIER, "--run_dir", "", "--checkpoint_dir",
                                   folder / "checkpoints"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return testing::RunningProcess(command, {{"OMP_NUM_THREADS", "1"}}).finish();
}

// The number after `label` in the last line that has it.
double last_number(const std::string& output, const std::string& label) {
  const auto at = output.rfind(label);
  return at == std::string::npos ? -1 : std::strtod(output.c_str() + at + label.size(), nullptr);
}

}  // namespace

TEST_CASE("[E01] the image classifier learns real handwritten digits from the shipped config") {
  testing::ScratchDirectory folder;
  const auto done = classify(folder, {"--config", TROUPE_SOURCE_DIR "/examples/image_classifier/digits.toml",
                                      "--epochs", "1", "--warmup_steps", "5", "--batch_size", "32"});
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK(last_number(done.output, "accuracy ") > 80);  // per cent of the 359 held out; guessing gives 10
}

TEST_CASE("[U05] a program of ten lines names as many digits right as the validation of the checkpoint it loads",
          "[share]") {
  testing::ScratchDirectory folder;
  const std::string config = TROUPE_SOURCE_DIR "/examples/image_classifier/digits.toml";
  const auto trained =
      classify(folder, {"--config", config, "--epochs", "1", "--warmup_steps", "5", "--batch_size", "32"});
  INFO(trained.output);
  REQUIRE(trained.code == 0);
  const auto infer = [&](const std::vector<std::string>& arguments) {
    std::vector<std::string> command{TROUPE_INFERENCE};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return testing::RunningProcess(command, {{"OMP_NUM_THREADS", "1"}}).finish();
  };
  const auto done = infer({folder / "checkpoints", config});
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK_THAT(done.output, Catch::Contains("% of 359"));
  CHECK(last_number(done.output, "accuracy ") > 80);
  CHECK(last_number(done.output, "accuracy ") == last_number(trained.output, "accuracy "));
  const auto validated = classify(folder, {"--config", config, "--validate-only", "--resume", "latest"});
  INFO(validated.output);
  CHECK(validated.code == 0);
  CHECK(last_number(validated.output, "accuracy ") == last_number(trained.output, "accuracy "));
  const auto absent = infer({folder / "nothing", config});
  CHECK(absent.code == 2);
  CHECK_THAT(absent.output,
             Catch::Contains("error: ") && Catch::Contains("load_weights") && Catch::Contains("is not there"));
}

TEST_CASE("[L03] a device that is not there ends the program with the reason and what to do") {
  testing::ScratchDirectory folder;
  const auto no_such = classify(folder, {"--device", "cuda:x"});
  CHECK(no_such.code == 2);
  CHECK_THAT(no_such.output,
             Catch::Contains("error: device: 'cuda:x' is not a device; use auto, cpu, cuda, or cuda:N"));
  if (device_facts().count > 0) return;
  const auto absent = classify(folder, {"--device", "cuda"});
  CHECK(absent.code == 69);
  CHECK_THAT(absent.output,
             Catch::Contains("error: device: 'cuda' was asked for, but there is no GPU: " + device_facts().problem));
}

TEST_CASE("[E01] the image classifier trains on synthetic images and on CIFAR-10's files") {
  testing::ScratchDirectory folder;
  const auto data = GENERATE(as<std::string>{}, "synthetic", "cifar10");
  std::vector<std::string> arguments{"--data",         data, "--batch_size",     "8", "--max_steps",  "3",
                                     "--log_interval", "1",  "--validate_every", "0", "--image_size", "8"};
  if (data == "synthetic") arguments.insert(arguments.end(), {"--synthetic_size", "64"});
  if (data == "cifar10") {
    std::mt19937 random(1);
    for (const char* name :
         {"data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"}) {
      std::string records;
      for (int i = 0; i < 8; ++i) {
        records += static_cast<char>(i);
        for (int byte = 0; byte < 3072; ++byte) records += static_cast<char>(random());
      }
      testing::write_text(folder / (std::string(name) + ".bin"), records);
    }
    arguments.insert(arguments.end(), {"--data_dir", folder.path()});
  }
  const auto done = classify(folder, arguments);
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK_THAT(done.output, Catch::Contains("data: " + data) && Catch::Contains("step 3/3"));
}

TEST_CASE(
    "[S05] the image classifier trains on pictures in folders and in tar shards by flags alone, and heeds "
    "on_bad_sample",
    "[share]") {
  testing::ScratchDirectory folder;
  const auto wrote =
      testing::RunningProcess({"/usr/bin/python3", TROUPE_SOURCE_DIR "/tests/python/write_data.py", folder.path()})
          .finish();
  if (wrote.code == 77) {
    WARN(wrote.output);
    return;
  }
  REQUIRE(wrote.code == 0);
  const auto kind = GENERATE(as<std::string>{}, "image_folder", "webdataset");
  INFO(kind);
  std::vector<std::string> arguments{
      "--data",         kind, "--data_dir",    folder / (kind == "webdataset" ? "shards" : "classes"),
      "--image_size",   "16", "--num_classes", "3",
      "--batch_size",   "4",  "--epochs",      "1",
      "--log_interval", "1",  "--ranks",       "2",
      "--save_every",   "-1"};
  const auto done = classify(folder, arguments);
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK_THAT(done.output, Catch::Contains("data: " + kind) &&
                              Catch::Contains(std::string(kind == "webdataset" ? "24" : "10") + " to train"));
  CHECK_THAT(done.output, Catch::Contains(kind == "webdataset" ? "step 6/6" : "step 2/2"));

  std::filesystem::path broken = folder / "classes/cat/02.jpg";
  if (kind == "webdataset") {
    broken = folder / "shards/part-000003.tar";
    std::filesystem::resize_file(broken, std::filesystem::file_size(broken) / 2);
  } else {
    testing::write_text(broken.string(), "no picture");
  }
  const auto stopped = classify(folder, arguments);
  INFO(stopped.output);
  CHECK(stopped.code == 65);
  CHECK_THAT(stopped.output,
             Catch::Contains("error:") && Catch::Contains(broken.string()) && Catch::Contains("on_bad_sample"));
  arguments.insert(arguments.end(), {"--on_bad_sample", "skip"});
  const auto skipped = classify(folder, arguments);
  INFO(skipped.output);
  CHECK(skipped.code == 0);
  CHECK_THAT(skipped.output, Catch::Contains(broken.string()));
  CHECK_THAT(skipped.output,
             Catch::Contains(kind == "webdataset" ? "samples are used" : "skipped (1 so far on this rank)"));
}

TEST_CASE("[L05] a loop of one's own goes on when a rank dies, also between two steps", "[share]") {
  testing::ScratchDirectory folder;
  const std::string fault = GENERATE(as<std::string>{}, "", "slot=1,step=150,at=collective",
                                     "slot=0,step=199,at=optimizer", "slot=1,step=200,at=data");
  INFO(fault);
  const auto done = testing::RunningProcess({TROUPE_PROGRAM, "launch", "--nproc", "2", "--run-dir", folder / "run",
                                             TROUPE_OWN_LOOP, "--checkpoint_dir", folder / "checkpoints", "--max_steps",
                                             "300", "--batch_size", "32", "--optimizer", "adamw", "--lr", "0.003"},
                                            {{"OMP_NUM_THREADS", "1"}, {"TROUPE_FAULT", fault}})
                        .finish();
  INFO(done.output);
  CHECK(done.code == 0);
  // The hundred in which a rank died misses what it had counted; the others are whole.
  CHECK_THAT(done.output, Catch::Contains("of 3200  (2 ranks)"));
  CHECK_THAT(done.output, Catch::Contains("step 100  right") && Catch::Contains("step 200  right") &&
                              Catch::Contains("step 300  right"));
  CHECK((done.output.find("generation 2") != std::string::npos) == !fault.empty());
  // ... and what was learned is what an undisturbed run learns.
  static double undisturbed = 0;
  if (fault.empty()) undisturbed = last_number(done.output, "step 300  right ");
  CHECK(undisturbed > 0.8);
  CHECK(last_number(done.output, "step 300  right ") == undisturbed);
}
TEST_CASE(
    "[C01] a loop of one's own resumes with the bits of one that was never stopped, and saves again what a lost rank "
    "spoilt",
    "[share]") {
  const std::string strategy = GENERATE("ddp", "fsdp");
  INFO(strategy);
  testing::ScratchDirectory folder;
  const auto run = [&](const std::string& name, const std::vector<std::string>& more, const std::string& fault = "") {
    std::vector<std::string> command{TROUPE_PROGRAM,
                                     "launch",
                                     "--nproc",
                                     "2",
                                     "--run-dir",
                                     folder / ("run-" + name),
                                     TROUPE_OWN_LOOP,
                                     "--batch_size",
                                     "32",
                                     "--strategy",
                                     strategy,
                                     "--snapshot_every",
                                     "16",
                                     "--optimizer",
                                     "adamw",
                                     "--lr",
                                     "0.003",
                                     "--checkpoint_dir",
                                     folder / name};
    command.insert(command.end(), more.begin(), more.end());
    const auto done = testing::RunningProcess(command, {{"OMP_NUM_THREADS", "1"}, {"TROUPE_FAULT", fault}}).finish();
    INFO(done.output);
    CHECK(done.code == 0);
    CHECK_THAT(done.output, Catch::Contains("checkpoint: " + folder / name));
    return done.output;
  };
  const auto state = [&](const std::string& name) { return load_checkpoint(folder / name, "latest").state; };
  run("whole", {"--max_steps", "90"});
  run("parts", {"--max_steps", "50", "--save_every", "20"});
  CHECK_THAT(run("parts", {"--max_steps", "90", "--resume", "latest"}),
             Catch::Contains("resume from") && Catch::Contains("step 50"));
  CHECK_THAT(run("hurt", {"--max_steps", "90"}, "slot=1,step=90,at=save"), Catch::Contains("generation 2"));
  const auto whole = state("whole");
  REQUIRE(whole.step == 90);
  for (const std::string name : {"parts", "hurt"}) {
    INFO(name);
    const auto other = state(name);
    CHECK(other.step == whole.step);
    CHECK(other.step_in_epoch == whole.step_in_epoch);
    REQUIRE(other.tensors.size() == whole.tensors.size());
    for (std::size_t i = 0; i < whole.tensors.size(); ++i) {
      INFO(whole.tensors[i].first);
      CHECK(other.tensors[i].first == whole.tensors[i].first);
      CHECK((at::equal(other.tensors[i].second, whole.tensors[i].second)));
    }
  }
}
#else
TEST_CASE("[E01] NOT RUN: the examples were not built") { WARN("NOT RUN: configure with TROUPE_EXAMPLES=ON"); }
#endif
