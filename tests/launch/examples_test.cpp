// The image classifier as a user starts it.
#include <cstdio>
#include <random>

#include "tests/catch.hpp"
#include "tests/support/running_process.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;

#ifdef TROUPE_IMAGE_CLASSIFIER
namespace {

testing::Finished classify(const testing::ScratchDirectory& folder, const std::vector<std::string>& arguments) {
  std::vector<std::string> command{TROUPE_IMAGE_CLASSIFIER, "--run_dir", "", "--checkpoint_dir", folder / "checkpoints"};
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
  const auto done = classify(folder, {"--config", TROUPE_SOURCE_DIR "/examples/image_classifier/digits.toml", "--epochs", "1",
                                      "--warmup_steps", "5", "--batch_size", "32"});
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK(last_number(done.output, "accuracy ") > 80);  // per cent of the 359 held out; guessing gives 10
}

TEST_CASE("[E01] the image classifier trains on synthetic images and on CIFAR-10's files") {
  testing::ScratchDirectory folder;
  const auto data = GENERATE(as<std::string>{}, "synthetic", "cifar10");
  std::vector<std::string> arguments{"--data",         data, "--batch_size",     "8", "--max_steps",  "3",
                                     "--log_interval", "1",  "--validate_every", "0", "--image_size", "8"};
  if (data == "synthetic") arguments.insert(arguments.end(), {"--synthetic_size", "64"});
  if (data == "cifar10") {
    std::mt19937 random(1);
    for (const char* name : {"data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"}) {
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

TEST_CASE("[L05] a loop of one's own goes on when a rank dies, also between two steps") {
  testing::ScratchDirectory folder;
  const std::string fault =
      GENERATE(as<std::string>{}, "", "slot=1,step=150,at=collective", "slot=0,step=199,at=optimizer", "slot=1,step=200,at=data");
  INFO(fault);
  const auto done = testing::RunningProcess({TROUPE_PROGRAM, "launch", "--nproc", "2", "--run-dir", folder / "run", TROUPE_OWN_LOOP,
                                             "--max_steps", "300", "--batch_size", "32", "--optimizer", "adamw", "--lr", "0.003"},
                                            {{"OMP_NUM_THREADS", "1"}, {"TROUPE_FAULT", fault}})
                        .finish();
  INFO(done.output);
  CHECK(done.code == 0);
  // The hundred in which a rank died misses what it had counted; the others are whole.
  CHECK_THAT(done.output, Catch::Contains("of 3200  (2 ranks)"));
  CHECK_THAT(done.output, Catch::Contains("step 100  right") && Catch::Contains("step 200  right") && Catch::Contains("step 300  right"));
  CHECK((done.output.find("generation 2") != std::string::npos) == !fault.empty());
  // ... and what was learned is what an undisturbed run learns.
  static double undisturbed = 0;
  if (fault.empty()) undisturbed = last_number(done.output, "step 300  right ");
  CHECK(undisturbed > 0.8);
  CHECK(last_number(done.output, "step 300  right ") == undisturbed);
}
#else
TEST_CASE("[E01] NOT RUN: the examples were not built") { WARN("NOT RUN: configure with TROUPE_EXAMPLES=ON"); }
#endif
