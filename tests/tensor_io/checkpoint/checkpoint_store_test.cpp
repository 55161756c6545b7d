#include "tensor_io/checkpoint/checkpoint_store.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tensor_io/checkpoint/checkpoint_writer.hpp"
#include "tensor_io/checkpoint/safetensors.hpp"
#include "tensor_io/checkpoint/state_parts.hpp"
#include "tests/catch.hpp"
#include "tests/support/scratch_directory.hpp"
#include "tests/support/training_state.hpp"

using namespace troupe;
using namespace troupe::testing;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

using Names = std::set<std::string>;

}  // namespace

TEST_CASE("[C02] a rank that was cut off does not put its step in the place of a later one that others have saved") {
  const ScratchDirectory scratch;
  CHECK(saved_meanwhile(scratch.path(), 57, std::nullopt) == std::nullopt);
  WholeStateWriter writer(scratch.path(), 3);
  writer.save(small_state(50), true);
  CHECK(latest_step(scratch.path()) == 50);
  CHECK(saved_meanwhile(scratch.path(), 57, 50) == std::nullopt);
  writer.save(small_state(60), true);
  CHECK(saved_meanwhile(scratch.path(), 57, 50) == 60);
  CHECK(saved_meanwhile(scratch.path(), 57, std::nullopt) == 60);
  CHECK(saved_meanwhile(scratch.path(), 57, 60) == std::nullopt);  // of a run that began at an earlier step
  write_text(scratch / "latest", "x");
  CHECK(latest_step(scratch.path()) == std::nullopt);
}

TEST_CASE("[C01] a saved state comes back bit by bit: model, optimizer, scaler, RNG, cursor, epoch, step") {
  const ScratchDirectory scratch;
  WholeStateWriter writer(scratch / "a/b", 3);
  const auto state = small_state(1200);
  const auto saved = writer.save(state, true);
  CHECK(saved.path == scratch / "a/b/step-00001200");
  CHECK(saved.warning == "");
  CHECK((names_in(scratch / "a/b") == Names{"best", "latest", "step-00001200"}));
  CHECK(
      (names_in(saved.path) == Names{"manifest.json", "rank-00000.json", "rank-00000.safetensors", "rank-00001.json"}));

  for (const auto& selector :
       {std::string("latest"), std::string("best"), saved.path, std::string("step-00001200"), scratch / "a/b"}) {
    INFO(selector);
    const auto loaded = load_checkpoint(scratch / "a/b", selector);
    CHECK(equal(loaded.state, state));
    CHECK(fs::equivalent(loaded.path, saved.path));
    CHECK(loaded.refused.empty());
  }
  const auto verified = verify_checkpoint(saved.path);
  CHECK(verified.manifest.step == 1200);
  CHECK(verified.bytes + fs::file_size(saved.path + "/manifest.json") == saved.bytes);
  CHECK(RankState::from_json(state.rank_state[1], "rank 1").rng[2] == 1);
}

TEST_CASE("[C01] a state without tensors, ranks or metadata, and one of many megabytes, come back") {
  const ScratchDirectory scratch;
  WholeStateWriter writer(scratch.path(), 2);
  TrainingState empty;
  writer.save(empty, false);
  CHECK(equal(load_checkpoint(scratch.path(), "latest").state, empty));

  TrainingState large;
  large.step = 1;
  large.tensors = {{"a", torch::arange(700'000, torch::kInt)},
                   {"b", torch::arange(1'300'001, torch::kLong)},
                   {"c", torch::ones(3, torch::kBool)}};
  writer.save(large, false);
  CHECK(equal(load_checkpoint(scratch.path(), "latest").state, large));
}

TEST_CASE("[C01] Python reads a checkpoint") {
  const char* chosen = std::getenv("TROUPE_PYTHON");  // one that has torch and safetensors checks more
  const std::string python = chosen ? chosen : "python3";
  if (std::system((python + " -c pass").c_str()) != 0) {
    WARN("SKIPPED: there is no " << python);
    return;
  }
  const ScratchDirectory scratch;
  const SaveAttempt attempt{1200, "x"};
  for (std::int64_t rank = 0; rank < 2; ++rank)
    write_checkpoint_part(scratch.path(), attempt, part_of(small_state(1200), rank));
  const auto saved = CheckpointWriter(scratch.path(), 3, real_files(), attempt).publish(attempt, 2, false);
  CHECK(std::system(
            (python + " " TROUPE_SOURCE_DIR "/tests/python/read_checkpoint.py " + saved.path + " --small-state 1200")
                .c_str()) == 0);
}

TEST_CASE("the pointer and the manifest are what scripts can read") {
  const ScratchDirectory scratch;
  const auto saved = WholeStateWriter(scratch.path(), 3).save(small_state(7), false);
  CHECK_THAT(read_text(scratch / "latest"), Catch::StartsWith("step-00000007\nxxh3 "));
  const auto manifest = read_text(saved.path + "/manifest.json");
  CHECK_THAT(manifest, Contains(R"("format_version": 1)"));
  CHECK_THAT(
      manifest,
      Contains(
          R"({"name":"model.weight","dtype":"F32","shape":[3,4],"slices":[{"file":"rank-00000.safetensors","offsets":[0,0],"shape":[3,4]}]})"));
}

TEST_CASE("the XXH3 of a file is the published algorithm's") {
  // The values that xxhsum -H3 prints.
  CHECK(xxh3_text(xxh3(std::string_view(""))) == "2d06800538d394c2");
  CHECK(xxh3_text(xxh3(std::string_view("troupe"))) == "ec21d174febec525");
  DigestBuilder builder;
  const std::string text(2'500'000, 'x');
  for (std::size_t at = 0; at < text.size(); at += 999'999)
    builder.update(std::as_bytes(std::span(text).subspan(at, std::min<std::size_t>(999'999, text.size() - at))));
  const auto digest = builder.finish();
  CHECK(digest.bytes == text.size());
  CHECK(digest.xxh3 == xxh3_text(xxh3(digest.chunks)));
  CHECK(digest.chunks == xxh3_text(xxh3(std::string_view(text).substr(0, 1 << 20))) +
                             xxh3_text(xxh3(std::string_view(text).substr(1 << 20, 1 << 20))) +
                             xxh3_text(xxh3(std::string_view(text).substr(2 << 20))));
}

TEST_CASE("the last keep_last checkpoints, latest and best stay") {
  const ScratchDirectory scratch;
  {
    WholeStateWriter writer(scratch.path(), 2);
    for (const std::int64_t step : {10, 20, 30, 40, 50}) writer.save(small_state(step), step == 20);
    CHECK((names_in(scratch.path()) == Names{"best", "latest", "step-00000020", "step-00000040", "step-00000050"}));
    CHECK(load_checkpoint(scratch.path(), "best").state.step == 20);
  }
  SECTION("a run that goes on from an older one keeps its own, not what was given up") {
    WholeStateWriter writer(scratch.path(), 2);
    writer.save(small_state(25), false);
    CHECK((names_in(scratch.path()) == Names{"best", "latest", "step-00000020", "step-00000025"}));
    CHECK(load_checkpoint(scratch.path(), "latest").state.step == 25);
  }
  SECTION("a damaged best removes nothing, and the warning says so") {
    write_text(scratch / "best", "step-00000020");
    WholeStateWriter writer(scratch.path(), 1);
    CHECK_THAT(writer.save(small_state(60), false).warning, Contains("best") && Contains("damaged"));
    CHECK(fs::exists(scratch / "step-00000020"));
    CHECK(writer.save(small_state(70), true).warning == "");
    CHECK((names_in(scratch.path()) == Names{"best", "latest", "step-00000070"}));
  }
}

TEST_CASE("[C02] best names the best checkpoint of the branch of the run that is saved") {
  const ScratchDirectory scratch;
  WholeStateWriter writer(scratch.path(), 2);
  const auto save = [&](std::int64_t step, std::int64_t best_step, const std::string& best) {
    auto state = small_state(step);
    state.metadata["best_step"] = std::to_string(best_step);
    state.metadata["best"] = best;
    if (best_step >= 0) state.metadata["best_loss"] = "1";
    return writer.save(state, step == best_step).warning;
  };
  const auto best = [&] { return read_pointer(scratch.path(), "best"); };
  for (const std::int64_t step : {10, 20, 30}) save(step, step, "0." + std::to_string(step));
  CHECK(best() == 30);

  SECTION("a run that goes on from an older one keeps that one's best, whatever it replaces") {
    CHECK(save(30, 20, "0.20").empty());
    CHECK(best() == 20);
    CHECK(save(40, 20, "0.20").empty());
    CHECK(save(50, 20, "0.20").empty());
    CHECK((names_in(scratch.path()) == Names{"best", "latest", "step-00000020", "step-00000040", "step-00000050"}));
    CHECK(load_checkpoint(scratch.path(), "best").state.step == 20);
  }
  SECTION("nothing, if the branch has none, or its best one is gone") {
    CHECK(save(25, -1, "-1").empty());
    CHECK(best() == std::nullopt);
    save(30, 30, "0.30");
    CHECK(save(40, 10, "0.10").empty());
    CHECK(best() == std::nullopt);
  }
  SECTION("not one of that step in another branch") {
    CHECK(save(40, 20, "0.25").empty());
    CHECK(best() == std::nullopt);
  }
  SECTION("an older checkpoint, which does not say which one, leaves it unless it takes its place") {
    writer.save(small_state(40), false);
    CHECK(best() == 30);
    writer.save(small_state(30), false);
    CHECK(best() == std::nullopt);
  }
}

TEST_CASE("a step that is saved again replaces the older checkpoint") {
  const ScratchDirectory scratch;
  WholeStateWriter writer(scratch.path(), 3);
  writer.save(small_state(10), false);
  auto again = small_state(10);
  again.tensors[0].second.fill_(-1);
  again.rank_state.pop_back();
  writer.save(again, false);
  CHECK(equal(load_checkpoint(scratch.path(), "latest").state, again));
  CHECK((names_in(scratch.path()) == Names{"latest", "step-00000010"}));
}

TEST_CASE("what a killed run left is cleared away at the start, and nothing else") {
  const ScratchDirectory scratch;
  WholeStateWriter(scratch.path(), 3).save(small_state(10), false);
  fs::create_directories(scratch / ".tmp-step-00000020/sub");
  write_text(scratch / ".tmp-step-00000020/rank-00000.safetensors", "half");
  write_text(scratch / ".tmp-latest", "step-");
  write_text(scratch / ".tmp-notes", "the user's");
  fs::rename(scratch / "step-00000010", scratch / ".old-step-00000010");
  CHECK(load_checkpoint(scratch.path(), "latest").state.step == 10);  // before, too
  CheckpointWriter writer(scratch.path(), 3);
  CHECK((names_in(scratch.path()) == Names{".tmp-notes", "latest", "step-00000010"}));
}

TEST_CASE("two jobs do not write into one directory") {
  const ScratchDirectory scratch;
  const CheckpointWriter first(scratch.path(), 3);
  CHECK_THROWS_WITH(CheckpointWriter(scratch.path(), 3), Contains("another job"));
}

TEST_CASE(
    "[C02] a folder that is moved while the job runs fails the save, and another one of its name stays as it is") {
  const ScratchDirectory scratch;
  WholeStateWriter writer(scratch / "c", 1);
  writer.save(small_state(10), true);
  fs::rename(scratch / "c", scratch / "moved");
  const auto fails = [&](std::int64_t step) {
    try {
      writer.save(small_state(step), true);
      FAIL("saved");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::io);
      CHECK_THAT(error.what(), Contains(scratch / "c was moved or removed while the job ran; move it back"));
    }
  };
  fails(20);
  CHECK_FALSE(fs::exists(scratch / "c"));
  {
    WholeStateWriter other(scratch / "c", 9);
    for (const std::int64_t step : {20, 30}) other.save(small_state(step), step == 20);
    fs::create_directories(scratch / "c/.tmp-step-00000040.other");
    const auto names = names_in(scratch / "c");
    fails(25);
    writer.give_up({40, "other"});
    CHECK(names_in(scratch / "c") == names);
    CHECK(load_checkpoint(scratch / "c", "best").state.step == 20);
  }
  fs::rename(scratch / "c", scratch / "theirs");
  fs::rename(scratch / "moved", scratch / "c");
  writer.save(small_state(30), true);
  CHECK((names_in(scratch / "c") == Names{"best", "latest", "step-00000030"}));
}

TEST_CASE("a checkpoint directory that cannot be used is refused at the start") {
  const ScratchDirectory scratch;
  write_text(scratch / "file", "x");
  CHECK_THROWS_WITH(CheckpointWriter(scratch / "file", 3), Contains(scratch / "file"));
  CHECK_THROWS_WITH(CheckpointWriter(scratch / "file/below", 3), Contains(scratch / "file/below"));
  CHECK_THROWS_WITH(CheckpointWriter(scratch.path(), 0), Contains("keep_last is 0"));
}

TEST_CASE("without a checkpoint a load says so") {
  const ScratchDirectory scratch;
  for (const auto& directory : {scratch.path(), scratch / "nothing"}) {
    try {
      load_checkpoint(directory, "latest");
      FAIL("loaded");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::unavailable);
      CHECK_THAT(error.what(), Contains(directory) && Contains("--resume"));
    }
  }
  CHECK_THROWS_WITH(load_checkpoint(scratch.path(), "best"), Contains("there is none; ") && Contains("latest"));
  CHECK_THROWS_WITH(load_checkpoint(scratch.path(), "lastest"), Contains("'lastest'"));
}

TEST_CASE("checkpoints are tried from the latest down, then those above it") {
  const std::vector<CheckpointEntry> all = {{10, "a"}, {20, "b"}, {30, "c"}, {40, "d"}};
  auto steps = [&](std::optional<std::int64_t> latest) {
    std::vector<std::int64_t> order;
    for (const auto& entry : newest_first(all, latest)) order.push_back(entry.step);
    return order;
  };
  CHECK((steps(30) == std::vector<std::int64_t>{30, 20, 10, 40}));
  CHECK((steps(25) == std::vector<std::int64_t>{20, 10, 40, 30}));
  CHECK((steps(std::nullopt) == std::vector<std::int64_t>{40, 30, 20, 10}));
}

TEST_CASE("only names that the writer makes are checkpoints") {
  CHECK(parse_step_folder_name(step_folder_name(1200)) == 1200);
  CHECK(parse_step_folder_name(step_folder_name(123'456'789'012)) == 123'456'789'012);
  for (const auto* name : {"step-1200", "step-", "step-0000120x", "step--0001200", "step-000001200",
                           "step-99999999999999999999", "Step-00001200", ".tmp-step-00001200"})
    CHECK_FALSE(parse_step_folder_name(name).has_value());
}

TEST_CASE("a checkpoint of several files, each with slices, is put together") {
  const ScratchDirectory scratch;
  const auto folder = scratch / "step-00000005";
  fs::create_directories(folder);
  const auto whole = torch::arange(24).view({4, 6});
  const auto flat = torch::arange(5, torch::kFloat);
  Manifest manifest;
  manifest.step = 5;
  auto write = [&](std::int64_t rank, const NamedTensors& tensors) {
    DurableFile file(real_files(), folder + "/" + rank_tensor_file(rank));
    std::vector<TensorPart> parts;
    for (const auto& [name, tensor] : tensors) parts.push_back(whole_part(name, tensor));
    sort_for_file(parts);
    write_safetensors(file, parts);
    manifest.files[rank_tensor_file(rank)] = file.finish();
  };
  write(0, {{"w", whole.slice(1, 0, 2)}, {"v", flat.slice(0, 0, 3)}});
  write(1, {{"w", whole.slice(1, 2, 6)}, {"v", flat.slice(0, 3, 5)}});
  manifest.tensors = {
      {"w", at::kLong, {4, 6}, {{rank_tensor_file(0), {0, 0}, {4, 2}}, {rank_tensor_file(1), {0, 2}, {4, 4}}}},
      {"v", at::kFloat, {5}, {{rank_tensor_file(0), {0}, {3}}, {rank_tensor_file(1), {3}, {2}}}}};
  write_text(folder + "/manifest.json", manifest.to_text());
  const auto loaded = load_checkpoint(scratch.path(), folder).state;
  REQUIRE(loaded.tensors.size() == 2);
  CHECK(torch::equal(loaded.tensors[0].second, whole));
  CHECK(torch::equal(loaded.tensors[1].second, flat));
}

TEST_CASE("what is written as a manifest can be read, and what readers refuse for its size is not written") {
  Manifest manifest;
  manifest.ranks = 5000;
  for (std::int64_t rank = 0; rank < manifest.ranks; ++rank)
    manifest.files[rank_tensor_file(rank)].xxh3 = FileDigest::of_chunks("");
  const auto add = [&](const std::string& name, std::int64_t slices) {
    auto& tensor = manifest.tensors.emplace_back(ManifestTensor{name, at::kFloat, {slices, 8}, {}});
    for (std::int64_t s = 0; s < slices; ++s) tensor.slices.push_back({rank_tensor_file(s), {s, 0}, {1, 8}});
  };
  for (int t = 0; t < 50; ++t) add("model." + std::to_string(100 + t), 4000);
  const auto text = manifest.to_text(Manifest::Kind::part);
  CHECK(Manifest::from_text(text, "manifest", Manifest::Kind::part).tensors.size() == 50);
  add("model.wide", static_cast<std::int64_t>(Manifest::kMaxSlices) + 1);
  CHECK_THROWS_WITH(manifest.to_text(), Catch::Contains("'model.wide' lies in 4097 slices, and readers accept 4096") &&
                                            Catch::Contains("save with fewer ranks"));
  manifest.tensors.pop_back();
  manifest.metadata["plan"] = std::string(Manifest::kMaxBytes, 'x');
  CHECK_THROWS_WITH(manifest.to_text(), Catch::Contains("MiB, and readers accept 64"));
}
