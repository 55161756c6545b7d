// `troupe checkpoint` as a user types it.
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "tensor_io/checkpoint/plain_archive.hpp"
#include "tensor_io/checkpoint/safetensors.hpp"
#include "tests/catch.hpp"
#include "tests/support/running_process.hpp"
#include "tests/support/scratch_directory.hpp"
#include "tests/support/training_state.hpp"

using namespace troupe;
using namespace troupe::testing;
using Catch::Contains;

namespace {

Finished checkpoint(std::vector<std::string> words) {
  words.insert(words.begin(), {TROUPE_PROGRAM, "checkpoint"});
  RunningProcess process(words, {});
  auto finished = process.finish();
  INFO(finished.output);
  return finished;
}

/// Steps 10, 20 and 30; 20 is the best.
struct Saved {
  ScratchDirectory scratch;
  Saved() {
    WholeStateWriter writer(scratch / "checkpoints", 5);
    for (const int step : {10, 20, 30}) writer.save(small_state(step), step == 20);
  }
  std::string directory() const { return scratch / "checkpoints"; }
  std::string step(const std::string& number) const { return directory() + "/step-000000" + number; }
};

void flip_byte(const std::string& path, std::size_t at) {
  auto text = read_text(path);
  text.at(at) = static_cast<char>(text[at] ^ 1);
  write_text(path, text);
}

}  // namespace

TEST_CASE("[C03] troupe checkpoint ls and verify show what is there and name what is damaged") {
  const Saved saved;
  const auto listed = checkpoint({"ls", saved.directory()});
  CHECK(listed.code == 0);
  for (const auto* word : {"10", "20", "30", "best", "latest"}) CHECK_THAT(listed.output, Contains(word));

  auto verified = checkpoint({"verify", saved.directory()});
  CHECK(verified.code == 0);
  CHECK_THAT(verified.output, !Contains("bad"));

  flip_byte(saved.step("20") + "/rank-00000.safetensors", 700);
  verified = checkpoint({"verify", saved.directory()});
  CHECK(verified.code == 65);
  CHECK_THAT(verified.output, Contains("good  " + saved.step("10")) && Contains("good  " + saved.step("30")));
  CHECK_THAT(verified.output, Contains("bad   " + saved.step("20")) && Contains("rank-00000.safetensors"));
  CHECK(checkpoint({"verify", saved.step("30")}).code == 0);
  CHECK(checkpoint({"verify", saved.step("20")}).code == 65);

  flip_byte(saved.step("10") + "/manifest.json", 30);
  const auto listed_damaged = checkpoint({"ls", saved.directory()});
  CHECK(listed_damaged.code == 65);
  CHECK_THAT(listed_damaged.output, Contains("bad: "));
}

TEST_CASE("[C05] troupe checkpoint inspect shows each tensor with dtype and shape") {
  const Saved saved;
  const auto inspected = checkpoint({"inspect", saved.directory()});
  CHECK(inspected.code == 0);
  for (const auto* word : {"step 30", "strategy: ddp", "model.weight", "[3, 4]", "BF16",
                           "optimizer.weight.momentum_buffer", "4 tensors, 30 numbers"})
    CHECK_THAT(inspected.output, Contains(word));
  CHECK_THAT(checkpoint({"inspect", saved.step("10")}).output, Contains("step 10"));
}

TEST_CASE("[F05] troupe checkpoint convert writes the model as one file, and reads it back") {
  const Saved saved;
  const auto state = small_state(30);
  for (const std::string name : {"model.safetensors", "model.pt"}) {
    INFO(name);
    const auto path = saved.scratch / name;
    CHECK(checkpoint({"convert", saved.directory(), path}).code == 0);
    const auto read = name == "model.pt" ? load_plain_archive(path) : load_safetensors(path);
    REQUIRE(read.size() == 3);
    for (const auto& [key, tensor] : read) {
      const auto original =
          std::find_if(state.tensors.begin(), state.tensors.end(),
                       [name = "model." + key](const auto& original) { return original.first == name; });
      REQUIRE(original != state.tensors.end());
      CHECK((tensor.scalar_type() == original->second.scalar_type() && torch::equal(tensor, original->second)));
    }
    CHECK_THAT(checkpoint({"inspect", path}).output, Contains("weight") && Contains("3 tensors"));
  }
  const auto everything = saved.scratch / "all.safetensors";
  CHECK(checkpoint({"convert", saved.step("10"), everything, "--all"}).code == 0);
  CHECK(load_safetensors(everything).size() == 4);
  // From one format to the other, without a checkpoint.
  CHECK(checkpoint({"convert", saved.scratch / "model.pt", saved.scratch / "again.safetensors"}).code == 0);
  CHECK(load_safetensors(saved.scratch / "again.safetensors").size() == 3);
}

TEST_CASE("[C05] Python's torch.load opens what convert writes, and convert opens what torch.save writes") {
  const char* python = std::getenv("TROUPE_PYTHON");
  if (python == nullptr) {
    WARN("SKIPPED: TROUPE_PYTHON names no Python with torch and safetensors");
    return;
  }
  const Saved saved;
  CHECK(checkpoint({"convert", saved.directory(), saved.scratch / "model.pt"}).code == 0);
  CHECK(checkpoint({"convert", saved.directory(), saved.scratch / "model.safetensors"}).code == 0);
  RunningProcess script({python, TROUPE_SOURCE_DIR "/tests/python/exchange_models.py", saved.scratch.path()}, {});
  const auto finished = script.finish();
  INFO(finished.output);
  CHECK(finished.code == 0);

  const auto nested = load_plain_archive(saved.scratch / "from_python.pt");
  REQUIRE(nested.size() == 2);
  CHECK((nested[0].first == "model.weight" && nested[0].second.equal(torch::arange(6, torch::kFloat).view({2, 3}))));
  CHECK((nested[1].first == "model.half" && nested[1].second.scalar_type() == torch::kBFloat16));
  const auto sharded = saved.scratch / "sharded";
  CHECK(checkpoint({"convert", sharded, saved.scratch / "sharded.safetensors"}).code == 0);
  const auto whole = load_safetensors(saved.scratch / "sharded.safetensors");
  REQUIRE(whole.size() == 2);
  const std::map<std::string, at::Tensor> by_name(whole.begin(), whole.end());
  CHECK(by_name.at("rows").equal(torch::arange(35, torch::kFloat).view({7, 5})));
  CHECK(by_name.at("columns").equal(torch::arange(12, torch::kBFloat16).view({3, 4})));
  CHECK(checkpoint({"inspect", saved.scratch / "ordered.pt"}).code == 0);
  for (const std::string name : {"whole_module.pt", "old_format.pt"}) {
    INFO(name);
    const auto refused = checkpoint({"inspect", saved.scratch / name});
    CHECK(refused.code == 65);
    CHECK_THAT(refused.output, Contains(name) && Contains("torch.save(model.state_dict(), path)") &&
                                   Contains("safetensors.torch.save_file"));
  }
}

TEST_CASE("[R9] troupe checkpoint takes the names of checkpoints and links wherever it takes a path", "[share]") {
  const Saved saved;
  namespace fs = std::filesystem;
  fs::create_directory_symlink(saved.directory(), saved.scratch / "link");
  fs::create_directory_symlink(saved.step("20"), saved.scratch / "one");
  fs::create_symlink(saved.directory() + "/best", saved.scratch / "good");
  const auto target = saved.scratch / "x.safetensors";
  for (const auto& [path, step] : std::map<std::string, int>{{saved.directory() + "/best", 20},
                                                             {saved.directory() + "/latest", 30},
                                                             {saved.scratch / "link", 30},
                                                             {saved.scratch / "link/", 30},
                                                             {saved.scratch / "link/best", 20},
                                                             {saved.scratch / "one", 20},
                                                             {saved.scratch / "good", 20}}) {
    INFO(path);
    CHECK(checkpoint({"convert", path, target}).code == 0);
    const auto read = load_safetensors(target);
    const std::map<std::string, at::Tensor> by_name(read.begin(), read.end());
    CHECK(by_name.at("steps").item<int>() == step);
    CHECK_THAT(checkpoint({"inspect", path}).output, Contains("step " + std::to_string(step) + ","));
    CHECK_THAT(checkpoint({"verify", path}).output,
               Contains("good  ") && Contains("step-000000" + std::to_string(step)));
    CHECK_THAT(checkpoint({"ls", path}).output, Contains("best") && Contains("10") && Contains("latest"));
  }
  write_text(saved.directory() + "/best", "step-00000020\n");
  CHECK_THAT(checkpoint({"convert", saved.directory() + "/best", target}).output, Contains("best: is damaged"));
  fs::remove_all(saved.step("30"));
  CHECK_THAT(checkpoint({"inspect", saved.directory() + "/latest"}).output,
             Contains("names step-00000030, which is not there"));
}

TEST_CASE("[R10] troupe checkpoint convert names the file of a folder that is missing, and what it passes over") {
  const ScratchDirectory scratch;
  const auto folder = scratch / "hub";
  std::filesystem::create_directories(folder);
  save_safetensors(folder + "/model-00001-of-00002.safetensors", {{"a", torch::ones(2)}});
  write_text(folder + "/model.safetensors.index.json",
             R"({"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}})");
  const auto missing = checkpoint({"convert", folder, scratch / "x.safetensors"});
  CHECK(missing.code == 65);
  CHECK_THAT(missing.output, Contains("model-00002-of-00002.safetensors: is missing") && Contains("1 tensor of 2"));
  CHECK(!std::filesystem::exists(scratch / "x.safetensors"));
  save_safetensors(folder + "/model-00002-of-00002.safetensors", {{"b", torch::ones(2)}});
  save_safetensors(folder + "/other.safetensors", {{"c", torch::ones(2)}});
  const auto whole = checkpoint({"convert", folder, scratch / "x.safetensors"});
  CHECK(whole.code == 0);
  CHECK_THAT(whole.output, Contains("2 tensors") && Contains("passed over") && Contains("'other.safetensors'"));
}

TEST_CASE("[C03] troupe checkpoint refuses what it does not understand in one line", "[share]") {
  const Saved saved;
  const auto refused = [](const std::vector<std::string>& words, int code, const std::string& why) {
    const auto finished = checkpoint(words);
    INFO(finished.output);
    CHECK(finished.code == code);
    CHECK_THAT(finished.output, Contains(why));
    CHECK(std::count(finished.output.begin(), finished.output.end(), '\n') == 1);
  };
  refused({"inspekt", saved.directory()}, 2, "did you mean inspect?");
  refused({"ls"}, 2, "it takes one PATH");
  refused({"ls", saved.scratch / "nowhere"}, 2, "is not there");
  write_text(saved.scratch / "note.txt", "see step-00000010, the best one\n");
  refused({"ls", saved.scratch / "note.txt"}, 2, "is not a directory");
  refused({"inspect", saved.scratch / "note.txt"}, 65, "is text, not a safetensors file");
  write_text(saved.scratch / "empty.safetensors", "");
  refused({"inspect", saved.scratch / "empty.safetensors"}, 65, "has 0 bytes");
  for (const std::string name : {"lfs.safetensors", "lfs.pt", "lfs"}) {
    write_text(saved.scratch / name,
               "version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, '0') + "\nsize 9\n");
    refused({"inspect", saved.scratch / name}, 65, "is a Git LFS pointer, not the file; run git lfs pull");
  }
  refused({"verify", saved.scratch.path()}, 2, "is not a checkpoint and contains none");
  refused({"convert", saved.directory(), saved.scratch / "model.onnx"}, 2, "end it in .safetensors");
  refused({"convert", saved.directory()}, 2, "it takes FROM and TO");
  refused({"ls", "--al", saved.directory()}, 2, "there is no flag '--al'");
  write_text(saved.scratch / "zeros.pt", std::string(4096, '\0'));
  refused({"inspect", saved.scratch / "zeros.pt"}, 65, "is not a zip archive");
  write_text(saved.scratch / "torn.pt", "PK\x03\x04" + std::string(4096, 'x'));
  refused({"inspect", saved.scratch / "torn.pt"}, 65, "cannot be read");
  write_text(saved.scratch / "torn.safetensors", std::string(7, 'x'));
  refused({"inspect", saved.scratch / "torn.safetensors"}, 65, "torn.safetensors");
}

TEST_CASE(
    "[C03] a file of torch.save that was cut short at any length is refused, and no byte beyond its end is read") {
  const ScratchDirectory scratch;
  save_plain_archive(scratch / "model.pt", {{"weight", torch::arange(6, torch::kFloat)}});
  const auto whole = read_text(scratch / "model.pt");
  for (std::size_t bytes = 0; bytes < whole.size(); bytes += 7) {
    INFO(bytes << " of " << whole.size() << " bytes");
    write_text(scratch / "cut.pt", whole.substr(0, bytes));
    CHECK_THROWS_WITH(load_plain_archive(scratch / "cut.pt"), Contains("cut.pt"));
  }
}

TEST_CASE("[C03] [T06] troupe checkpoint inspect shows no terminal escape of a checkpoint's names and values") {
  const ScratchDirectory scratch;
  auto state = small_state(10);
  state.metadata["ti\x1b]0;owned\x07tle"] = "\x1b[2Jgone";
  WholeStateWriter(scratch / "checkpoints", 5).save(state, false);
  const auto shown = checkpoint({"inspect", scratch / "checkpoints"});
  CHECK(shown.code == 0);
  CHECK_THAT(shown.output, Contains("ti\\x1b]0;owned\\x07tle: \\x1b[2Jgone") && Contains("strategy: ddp"));
  CHECK(shown.output.find_first_of("\x1b\x07") == std::string::npos);
}
