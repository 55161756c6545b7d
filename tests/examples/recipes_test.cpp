// The recipes as a user starts them, and beside their twins of PyTorch.
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tensor_io/checkpoint/safetensors.hpp"
#include "tests/catch.hpp"
#include "tests/support/count_of.hpp"
#include "tests/support/running_process.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;

#ifdef TROUPE_RECIPES
namespace {

testing::Finished run_recipe(const std::string& name, const std::vector<std::string>& arguments) {
  std::vector<std::string> command{std::string(TROUPE_RECIPES "/") + name, "--ranks", "2", "--run_dir", ""};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return testing::RunningProcess(command, {{"OMP_NUM_THREADS", "1"}}).finish();
}

std::vector<double> held_out_losses(const std::string& output) {
  std::vector<double> losses;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    constexpr std::string_view label = "held-out loss ";
    const auto at = line.find(label);
    if (line.find("epoch ") < at && at != std::string::npos)
      losses.push_back(std::strtod(line.c_str() + at + label.size(), nullptr));
  }
  return losses;
}

/// A file that the adapters begin with.
std::string base_file(const testing::ScratchDirectory& folder) {
  const auto trained =
      run_recipe("low_rank_adapters", {"--adapter_rank", "0", "--epochs", "2", "--checkpoint_dir", folder / "base"});
  INFO(trained.output);
  REQUIRE(trained.code == 0);
  auto file = folder / "base.safetensors";
  REQUIRE(testing::RunningProcess({TROUPE_PROGRAM, "checkpoint", "convert", folder / "base", file}).finish().code == 0);
  return file;
}

}  // namespace

TEST_CASE("[U05] averaged weights are validated, and the run ends five epochs after its best, also if it was resumed",
          "[share]") {
  const testing::ScratchDirectory folder;
  const std::vector<std::string> settings{"--checkpoint_dir", folder / "checkpoints"};
  const auto whole = run_recipe("average_weights", settings);
  INFO(whole.output);
  CHECK(whole.code == 0);
  const auto losses = held_out_losses(whole.output);
  REQUIRE(losses.size() > 6);
  CHECK(losses.size() < 50);
  CHECK_THAT(whole.output, Catch::Contains("the program ends the run after step " + std::to_string(8 * losses.size())));
  const auto last_best = whole.output.rfind("(best so far)");
  CHECK(held_out_losses(whole.output.substr(last_best)).size() == 5);

  // Stopped four epochs after its best, and resumed: it counts on.
  const testing::ScratchDirectory other;
  const std::vector<std::string> same{"--checkpoint_dir", other / "checkpoints"};
  auto first = same, second = same;
  first.insert(first.end(), {"--max_steps", std::to_string(8 * (losses.size() - 1))});
  second.insert(second.end(), {"--resume", "latest"});
  CHECK(run_recipe("average_weights", first).code == 0);
  const auto resumed = run_recipe("average_weights", second);
  INFO(resumed.output);
  CHECK(resumed.code == 0);
  CHECK(held_out_losses(resumed.output) == std::vector{losses.back()});
}

TEST_CASE("[U04] a masked language model of padded sentences learns, and logs the share of the masked words") {
  const testing::ScratchDirectory folder;
  const auto done = run_recipe("masked_language_model", {"--epochs", "5", "--run_dir", folder.path()});
  INFO(done.output);
  CHECK(done.code == 0);
  REQUIRE(held_out_losses(done.output).size() == 5);
  CHECK(held_out_losses(done.output).back() < 0.2);
  CHECK_THAT(testing::read_text(folder / "metrics.jsonl"), Catch::Contains("validation_metrics/masked/right"));
}

TEST_CASE("[U04] a regression has no accuracy on the console, and its best checkpoint is that of the lowest loss") {
  const testing::ScratchDirectory folder;
  const auto done = run_recipe("two_inputs", {"--epochs", "3", "--checkpoint_dir", folder.path()});
  INFO(done.output);
  CHECK(done.code == 0);
  const auto losses = held_out_losses(done.output);
  REQUIRE(losses.size() == 3);
  CHECK(losses.back() < 0.01);
  CHECK(losses[2] < losses[1]);
  CHECK(testing::count_of(done.output, "(best so far)") == 3);
  CHECK_THAT(done.output, !Catch::Contains("acc") && Catch::Contains("best held-out loss: "));
  CHECK_THAT(testing::RunningProcess({TROUPE_PROGRAM, "checkpoint", "ls", folder.path()}).finish().output,
             Catch::Contains("latest, best"));
}

TEST_CASE(
    "[U04] a run that ends within an epoch counts its last validation: its best is no worse than what it has said") {
  const testing::ScratchDirectory folder;
  const auto done = run_recipe("two_inputs", {"--max_steps", "5", "--checkpoint_dir", folder.path()});
  INFO(done.output);
  CHECK(done.code == 0);
  REQUIRE(held_out_losses(done.output).size() == 1);
  CHECK(testing::count_of(done.output, "(best so far)") == 1);
  CHECK_THAT(done.output, Catch::Contains("best held-out loss: "));
  CHECK_THAT(testing::RunningProcess({TROUPE_PROGRAM, "checkpoint", "ls", folder.path()}).finish().output,
             Catch::Contains("latest, best"));
}

TEST_CASE("[U05] adapters learn beside the weights of a safetensors file, which stay as they are") {
  const testing::ScratchDirectory folder;
  const auto base = base_file(folder);
  const auto tuned = run_recipe("low_rank_adapters", {"--shift", "0.5", "--epochs", "3", "--init_from", base,
                                                      "--checkpoint_dir", folder / "tuned"});
  INFO(tuned.output);
  CHECK(tuned.code == 0);
  CHECK_THAT(tuned.output, Catch::Contains("6 of 12 tensors"));
  REQUIRE(held_out_losses(tuned.output).size() == 3);
  CHECK(held_out_losses(tuned.output).back() < 0.01);
  const auto before = load_safetensors(base);
  const auto after = load_checkpoint(folder / "tuned", folder / "tuned/latest");
  std::size_t same = 0;
  for (const auto& [name, tensor] : after.state.tensors) {
    for (const auto& [of_base, weights] : before) same += name == "model." + of_base && at::equal(tensor, weights);
  }
  CHECK(same == before.size());
}

TEST_CASE("[U04] the recipes have the held-out losses of their twins in Python") {
  const char* python = std::getenv("TROUPE_PYTHON");
  if (python == nullptr) {
    WARN("SKIPPED: TROUPE_PYTHON names no Python with torch and safetensors");
    return;
  }
  const testing::ScratchDirectory folder;
  const auto base = base_file(folder);
  for (const std::string name : {"average_weights", "low_rank_adapters", "masked_language_model", "two_inputs"}) {
    const auto weights = folder / (name + ".pt");
    std::vector<std::string> twin{python,
                                  "-m",
                                  "torch.distributed.run",
                                  "--standalone",
                                  "--nproc-per-node",
                                  "2",
                                  TROUPE_SOURCE_DIR "/examples/recipes/" + name + ".py"};
    if (name == "low_rank_adapters") twin.push_back(base);
    twin.push_back(weights);
    const auto theirs = testing::RunningProcess(twin, {{"OMP_NUM_THREADS", "1"}}).finish();
    std::vector<std::string> settings{"--init_from", weights, "--shuffle", "false"};
    if (name == "low_rank_adapters") settings.insert(settings.end(), {"--shift", "0.5"});
    settings.insert(settings.end(), {"--checkpoint_dir", folder / name});
    const auto ours = run_recipe(name, settings);
    INFO(name << "\n" << theirs.output << ours.output);
    CHECK((theirs.code == 0 && ours.code == 0));
    const auto right = held_out_losses(theirs.output), found = held_out_losses(ours.output);
    REQUIRE((right.size() >= 3 && found.size() >= 3));
    for (std::size_t epoch = 0; epoch < 3; ++epoch) CHECK(std::abs(found[epoch] / right[epoch] - 1) < 1e-3);
  }
}
#endif
