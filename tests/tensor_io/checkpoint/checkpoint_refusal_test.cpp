// Checkpoints that are damaged, foreign or made to harm.
#include <sys/stat.h>
#include <torch/torch.h>

#include <functional>

#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tests/catch.hpp"
#include "tests/share.hpp"
#include "tests/support/scratch_directory.hpp"
#include "tests/support/training_state.hpp"

using namespace troupe;
using namespace troupe::testing;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

// A directory with the checkpoints of steps 10 and 20.
struct TwoCheckpoints {
  ScratchDirectory scratch;
  std::string older = scratch / "step-00000010", newer = scratch / "step-00000020";
  TwoCheckpoints() {
    WholeStateWriter writer(scratch.path(), 3);
    writer.save(small_state(10), false);
    writer.save(small_state(20), false);
  }
};

// The refusal of the newer one, after the load fell back to the older one.
std::string refusal_of_newer(const TwoCheckpoints& two) {
  const auto loaded = load_checkpoint(two.scratch.path(), "latest");
  CHECK(equal(loaded.state, small_state(10)));
  CHECK(loaded.path == two.older);
  CHECK_THROWS_AS(verify_checkpoint(two.newer), Error);
  CHECK_THROWS_AS(load_checkpoint(two.scratch.path(), two.newer), Error);
  for (const auto& refused : loaded.refused) {
    if (refused.path == two.newer) return refused.reason;
  }
  return {};
}

// Gives a changed manifest its hash back, as someone who means harm would.
std::string sealed(std::string manifest) {
  const auto tail = manifest.rfind(",\n  \"xxh3\": \"");
  REQUIRE(tail != manifest.npos);
  manifest.resize(tail);
  return manifest + ",\n  \"xxh3\": \"" + xxh3_text(xxh3(std::string_view(manifest))) + "\"\n}\n";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  REQUIRE(at != text.npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("[C03] fault 28: any flipped byte of a checkpoint is found, and the one before is used") {
  const TwoCheckpoints two;
  for (const auto* name : {"manifest.json", "rank-00000.safetensors", "rank-00001.json"}) {
    const auto path = two.newer + "/" + name;
    const auto whole = read_text(path);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      if (!testing::in_share(0.3, name + std::to_string(i))) continue;
      auto flipped = whole;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << i % 8));
      write_text(path, flipped);
      INFO(name << " byte " << i);
      const auto reason = refusal_of_newer(two);
      if (!(reason.find(path) != reason.npos)) FAIL_CHECK(reason);
    }
    write_text(path, whole);
  }
  CHECK(equal(load_checkpoint(two.scratch.path(), "latest").state, small_state(20)));
}

TEST_CASE(
    "[C03] fault 28: a checkpoint whose file was cut short at any length is refused, and the one before is used") {
  const TwoCheckpoints two;
  for (const auto* name : {"manifest.json", "rank-00000.safetensors", "rank-00000.json"}) {
    const auto path = two.newer + "/" + name;
    const auto whole = read_text(path);
    for (std::size_t length = 0; length < whole.size(); length += 3) {
      write_text(path, whole.substr(0, length));
      INFO(name << " of length " << length);
      const auto reason = refusal_of_newer(two);
      if (!(reason.find(path) != reason.npos)) FAIL_CHECK(reason);
    }
    write_text(path, whole);
  }
}

TEST_CASE(
    "[C03] fault 28: a pointer that is damaged, cut, missing or names nothing leads to the newest good checkpoint") {
  const TwoCheckpoints two;
  const auto path = two.scratch / "latest";
  const auto whole = read_text(path);
  auto still_loads = [&] {
    const auto loaded = load_checkpoint(two.scratch.path(), "latest");
    CHECK(loaded.state.step == 20);
    REQUIRE_FALSE(loaded.refused.empty());
    CHECK(loaded.refused[0].path == path);
  };
  for (std::size_t i = 0; i < whole.size(); ++i) {
    INFO(i);
    auto flipped = whole;
    flipped[i] = static_cast<char>(flipped[i] ^ (1 << i % 8));
    write_text(path, flipped);
    still_loads();
    write_text(path, whole.substr(0, i));
    still_loads();
  }
  write_text(path, replaced(whole, "20", "10"));  // points to an older one without its hash
  still_loads();
  fs::remove(path);
  still_loads();
  fs::create_symlink("/etc/passwd", path);
  still_loads();
  fs::remove(path);
  fs::create_directory(path);
  still_loads();
}

TEST_CASE("[C03] fault 29: a missing or foreign file is refused with its name") {
  const TwoCheckpoints two;
  const auto shard = two.newer + "/rank-00000.safetensors";
  SECTION("missing tensors") {
    fs::remove(shard);
    CHECK_THAT(refusal_of_newer(two), Contains(shard) && Contains("missing"));
  }
  SECTION("missing rank state") {
    fs::remove(two.newer + "/rank-00001.json");
    CHECK_THAT(refusal_of_newer(two), Contains("rank-00001.json") && Contains("missing"));
  }
  SECTION("missing manifest") {
    fs::remove(two.newer + "/manifest.json");
    CHECK_THAT(refusal_of_newer(two), Contains("manifest.json") && Contains("missing"));
  }
  SECTION("tensors of another step, of the same length") {
    fs::copy_file(two.older + "/rank-00000.safetensors", shard, fs::copy_options::overwrite_existing);
    CHECK_THAT(refusal_of_newer(two), Contains(shard) && Contains("XXH3"));
  }
  SECTION("manifest of another step") {
    fs::copy_file(two.older + "/manifest.json", two.newer + "/manifest.json", fs::copy_options::overwrite_existing);
    CHECK_THAT(refusal_of_newer(two), Contains("step 10"));
  }
  SECTION("a folder under another step's name") {
    fs::rename(two.newer, two.scratch / "step-00000030");
    const auto loaded = load_checkpoint(two.scratch.path(), "latest");
    CHECK(loaded.state.step == 10);
  }
  SECTION("a pickle where the tensors should be") {
    const auto bytes = fs::file_size(shard);
    write_text(shard, std::string("\x80\x02}q\0X", 6) + std::string(bytes - 6, 'x'));
    CHECK_THAT(refusal_of_newer(two), Contains("pickle") && Contains("safetensors.torch.save_file"));
  }
  SECTION("a torch archive where the manifest should be") {
    write_text(two.newer + "/manifest.json", "PK\x03\x04 archive");
    CHECK_THAT(refusal_of_newer(two), Contains("torch.save"));
  }
  SECTION("an empty folder") {
    fs::remove_all(two.newer);
    fs::create_directory(two.newer);
    CHECK_THAT(refusal_of_newer(two), Contains("manifest.json"));
  }
  SECTION("a file instead of the folder") {
    fs::remove_all(two.newer);
    write_text(two.newer, "x");
    CHECK_THAT(refusal_of_newer(two), Contains("not a folder"));
  }
}

TEST_CASE("[R9] --resume takes a checkpoint's name with its folder, and a link to either") {
  const TwoCheckpoints two;
  const ScratchDirectory links;
  WholeStateWriter(two.scratch.path(), 3).save(small_state(30), true);
  WholeStateWriter(two.scratch.path(), 4).save(small_state(40), false);
  fs::create_directory_symlink(two.scratch.path(), links / "all");
  fs::create_symlink(two.scratch / "best", links / "good");
  for (const auto& [selector, step] : std::vector<std::pair<std::string, int>>{{two.scratch / "best", 30},
                                                                               {two.scratch / "latest", 40},
                                                                               {links / "all", 40},
                                                                               {links / "all/best", 30},
                                                                               {links / "all/step-00000030", 30},
                                                                               {links / "good", 30}}) {
    INFO(selector);
    CHECK(load_checkpoint("elsewhere", selector).state.step == step);
  }
  fs::resize_file(two.scratch / "step-00000040/manifest.json", 9);
  CHECK(load_checkpoint("elsewhere", two.scratch / "latest").state.step == 30);  // as "latest" alone
}

TEST_CASE("[C03] links, pipes and devices in a checkpoint are refused") {
  const TwoCheckpoints two;
  for (const auto* name : {"manifest.json", "rank-00000.safetensors", "rank-00000.json"}) {
    const auto path = two.newer + "/" + name, aside = two.scratch / "aside";
    INFO(name);
    fs::rename(path, aside);
    fs::create_symlink(aside, path);
    CHECK_THAT(refusal_of_newer(two), Contains(path) && Contains("symbolic link"));
    fs::remove(path);
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    CHECK_THAT(refusal_of_newer(two), Contains(path) && Contains("not a regular file"));
    fs::remove(path);
    fs::rename(aside, path);
  }
  fs::rename(two.newer, two.scratch / "elsewhere");
  fs::create_symlink(two.scratch / "elsewhere", two.newer);
  const auto loaded = load_checkpoint(two.scratch.path(), "latest");
  CHECK(loaded.state.step == 10);
  CHECK_THAT(loaded.refused.at(0).reason, Contains("symbolic links"));
  CHECK_THROWS_WITH(verify_checkpoint(two.newer + "/"), Contains("symbolic links"));
}

TEST_CASE("[C03] a manifest with a right hash and wrong content is refused with the field") {
  const TwoCheckpoints two;
  const auto path = two.newer + "/manifest.json";
  const auto whole = read_text(path);
  const std::string weight = R"("slices":[{"file":"rank-00000.safetensors","offsets":[0,0],"shape":[3,4]}]})";
  const std::string slice = R"({"file":"rank-00000.safetensors","offsets":[0,0],"shape":[3,4]})";
  struct Hostile {
    std::string from, to, reason;
  };
  const Hostile hostiles[] = {
      {R"("format_version": 1)", R"("format_version": 2)", "format version 2"},
      {R"("format": "troupe checkpoint")", R"("format": "other")", "not that of a Troupe checkpoint"},
      {R"("step": 20)", R"("step": 21)", "step 21"},
      {R"("step": 20)", R"("step": -1)", "'step'"},
      {R"("step": 20)", R"("step": 18446744073709551615)", "'step'"},
      {R"("step": 20)", R"("step": 1e300)", "'step'"},
      {R"("step": 20,)", R"("step": 20, "step": 20,)", "'step' appears twice"},
      {R"("step": 20,)", "", "'step' is missing"},
      {R"("ranks": 2)", R"("ranks": 3)", "rank-00002.json"},
      {R"("ranks": 2)", R"("ranks": 1000000000000)", "ranks"},
      {R"("chunk_bytes": 1048576)", R"("chunk_bytes": 0)", "chunks"},
      {R"("metadata": {)", R"("metadata": {"x":1,)", "'x'"},
      {R"("name":"rank-00000.json")", R"("name":"../../rank-00000.json")", "has a name"},
      {R"("name":"rank-00000.json")", R"("name":"/etc/passwd")", "has a name"},
      {R"("name":"rank-00000.json")", R"("name":"")", "has a name"},
      {R"("name":"rank-00001.json")", R"("name":"rank-00000.json")", "twice"},
      {R"("bytes":)", R"("bytes":9000000000000000000,"bytez":)", "digits"},
      {R"("bytes":)", R"("bytes":7,"bytez":)", "has "},
      {R"("name":"model.weight")", R"("name":"model.wight")", "'model.wight'"},
      {R"("name":"model.weight")", R"("name":"../x")", "looks like a path"},
      {R"("name":"model.weight")", R"("name":"model.half")", "'model.half'"},
      {R"("dtype":"F32")", R"("dtype":"I32")", "another dtype"},
      {R"("dtype":"F32")", R"("dtype":"F33")", "does not know"},
      {R"("shape":[3,4],"slices")", R"("shape":[4,4],"slices")", "not covered"},
      {R"("shape":[3,4],"slices")", R"("shape":[4194305,4194305,211106198978564],"slices")", "63 bits"},
      {R"("shape":[3,4],"slices")", R"("shape":[12],"slices")", "dimensions"},
      {weight, R"("slices":[]})", "not covered"},
      {weight, R"("slices":[)" + slice + "," + slice + "]}", "not covered"},
      {weight, R"("slices":[{"file":"rank-00000.safetensors","offsets":[1,0],"shape":[3,4]}]})", "reaches out"},
      {weight, R"("slices":[{"file":"rank-00000.safetensors","offsets":[0,0],"shape":[4,3]}]})", "reaches out"},
      {weight, R"("slices":[{"file":"rank-00009.safetensors","offsets":[0,0],"shape":[3,4]}]})", "does not list"},
      {weight, R"("slices":[{"file":"rank-00000.json","offsets":[0,0],"shape":[3,4]}]})", "not a safetensors file"},
      {weight,
       R"("slices":[{"file":"rank-00000.safetensors","offsets":[0,0],"shape":[2,4]},{"file":"rank-00000.safetensors","offsets":[2,0],"shape":[1,4]}]})",
       "two slices"},
      {R"("tensors": [)", R"("tensors": [[[[[[[[[[]]]]]]]]],)", "nested deeper"},
      {R"("tensors": [)", R"("tensors": [7,)", "not an object"},
      {R"("tensors": [)", R"("tensors": 7, "tenors": [)", "'tensors'"},
  };
  for (const auto& hostile : hostiles) {
    INFO(hostile.from << " -> " << hostile.to);
    write_text(path, sealed(replaced(whole, hostile.from, hostile.to)));
    CHECK_THAT(refusal_of_newer(two), Contains(path.substr(0, path.rfind('/'))) && Contains(hostile.reason));
  }
}

TEST_CASE("[K05] a text of a manifest that its name does not promise is refused, and the one before is used") {
  const TwoCheckpoints two;
  const auto path = two.newer + "/manifest.json";
  const auto whole = read_text(path);
  const struct {
    std::string name;
    std::vector<std::string> bad;
    std::string good;
  } texts[] = {
      {"best", {"x", "", "nan", "inf", "1e999", "0.5 "}, "1.25"},
      {"samples", {"x", "-1", "9223372036854775808", "1e3"}, "60000"},
      {"files_hash", {"x", "-1", "18446744073709551616"}, "18446744073709551615"},
      {"world_size", {"0", "65537", "two"}, "2"},
      {"ddp.bucket_order", {"x", "0 x", "0  1", "0 1 ", "-1", "4294967296"}, "1 0"},
      {"ddp.measured", {"2", "yes"}, "1"},
      {"local_steps.outer_steps", {"x", "-1", "9223372036854775807"}, "3"},
      {"local_steps.last", {"-1", "18446744073709551615"}, "0"},
      {"local_steps.next", {"-9223372036854775808", "1 x"}, "7 9"},
      {"switching.switches", {"x", "-1", ""}, "1"},
  };
  for (const auto& text : texts) {
    for (const auto& bad : text.bad) {
      INFO(text.name << " = " << bad);
      write_text(path, sealed(replaced(whole, R"("metadata": {)",
                                       R"("metadata": {")" + text.name + R"(":")" + bad + R"(",)")));
      CHECK_THAT(refusal_of_newer(two), Contains(path) && Contains("'metadata' '" + text.name + "' is"));
    }
    INFO(text.name << " = " << text.good);
    write_text(path, sealed(replaced(whole, R"("metadata": {)",
                                     R"("metadata": {")" + text.name + R"(":")" + text.good + R"(",)")));
    CHECK_NOTHROW(verify_checkpoint(two.newer));
    CHECK(load_checkpoint(two.scratch.path(), "latest").path == two.newer);
  }
}

TEST_CASE("[K05] a manifest's place that no run can reach is refused, and the one before is used") {
  const TwoCheckpoints two;
  const auto path = two.newer + "/manifest.json";
  const auto whole = read_text(path);
  for (const auto& [from, to, field] :
       {std::tuple{R"("epoch": 3,)", R"("epoch": 9223372036854775807,)", "'epoch'"},
        std::tuple{R"("epoch": 3,)", R"("epoch": 22,)", "'epoch'"},
        std::tuple{R"("step_in_epoch": 7,)", R"("step_in_epoch": 9223372036854775807,)", "'step_in_epoch'"},
        std::tuple{R"("step": 20,)", R"("step": 9223372036854775807,)", "'step'"}}) {
    INFO(to);
    write_text(path, sealed(replaced(whole, from, to)));
    CHECK_THAT(refusal_of_newer(two), Contains(path) && Contains(field) && Contains("at most"));
  }
  auto state = small_state(20);
  state.epoch = 22;
  ScratchDirectory other;
  CHECK_THROWS_WITH(WholeStateWriter(other.path(), 1).save(state, false), Contains("readers accept"));
}

TEST_CASE("[K05] verify reads a rank's state, and finds a loss scale that none can be") {
  for (const auto& [counter, value] :
       {std::pair{"loss_scale", -1.0}, std::pair{"loss_scale", 0.0}, std::pair{"loss_scale", 1e300},
        std::pair{"loss_scale_growth_tracker", -1.0}, std::pair{"loss_scale_growth_tracker", 1e300}}) {
    INFO(counter << " = " << value);
    auto state = small_state(10);
    RankState rank;
    rank.counters = {{counter, value}};
    state.rank_state[1] = rank.to_json();
    ScratchDirectory scratch;
    WholeStateWriter(scratch.path(), 1).save(state, false);
    CHECK_THROWS_WITH(verify_checkpoint(scratch / "step-00000010"), Contains("rank-00001.json") && Contains(counter));
  }
}

TEST_CASE("[C03] a path to something that is no checkpoint is refused with the remedy") {
  const TwoCheckpoints two;
  auto refusal = [&](const std::string& selector) -> std::string {
    try {
      load_checkpoint(two.scratch.path(), selector);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::bad_data);
      return error.what();
    }
    return {};
  };
  write_text(two.scratch / "model.pt", std::string("PK\x03\x04\0\0\x08\x08", 8));
  write_text(two.scratch / "old.pt", std::string("\x80\x02\x8a\n", 4));
  CHECK_THAT(refusal(two.scratch / "model.pt"),
             Contains("model.pt") && Contains("torch.save") && Contains("save_file"));
  CHECK_THAT(refusal(two.scratch / "old.pt"), Contains("pickle") && Contains("save_file"));
  CHECK_THAT(refusal(two.newer + "/manifest.json"), Contains("name the folder"));
  CHECK_THAT(refusal(two.newer + "/rank-00000.safetensors"), Contains("name the folder"));
  CHECK_THAT(refusal("/etc"), Contains("manifest.json"));
  CHECK_THAT(refusal("/dev/zero"), Contains("not a regular file"));
}

TEST_CASE("[C03] if no checkpoint is good, the load says why of each") {
  const TwoCheckpoints two;
  fs::remove(two.older + "/manifest.json");
  fs::remove(two.newer + "/rank-00000.json");
  CHECK_THROWS_WITH(load_checkpoint(two.scratch.path(), "latest"), Contains("none of its 2 checkpoints is usable") &&
                                                                       Contains("step-00000010/manifest.json") &&
                                                                       Contains("step-00000020/rank-00000.json"));
}

TEST_CASE("[C03] fault 28: the offset and the tensor of damage deep in a large file are named") {
  const ScratchDirectory scratch;
  TrainingState state;
  state.step = 1;
  state.tensors = {{"a", torch::zeros(1'000'000)}, {"b", torch::zeros(1'000'000)}};
  const auto saved = WholeStateWriter(scratch.path(), 3).save(state, false);
  const auto path = saved.path + "/rank-00000.safetensors";
  auto text = read_text(path);
  text[6'000'000] ^= 1;
  write_text(path, text);
  CHECK_THROWS_WITH(load_checkpoint(scratch.path(), saved.path),
                    Contains("between offsets 5242880 and 6291456") && Contains("'b'"));
  CHECK_THROWS_WITH(verify_checkpoint(saved.path), Contains("between offsets 5242880 and 6291456"));
}
