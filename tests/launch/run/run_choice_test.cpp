#include "launch/run/run_choice.hpp"

#include <filesystem>

#include <nlohmann/json.hpp>

#include "launch/config/settings_ahead.hpp"
#include "launch/process/run_of_job.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"
#include "tests/catch.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;
using testing::ScratchDirectory;

namespace fs = std::filesystem;

namespace {

// A working directory with runs in it.
class Runs {
 public:
  Runs() : before_(fs::current_path()) { fs::current_path(folder_.path()); }
  ~Runs() { fs::current_path(before_); }
  Runs(const Runs&) = delete;
  Runs& operator=(const Runs&) = delete;

  static void checkpoint(const std::string& path, const std::string& run, const std::string& run_dir) {
    fs::create_directories(path);
    const nlohmann::json manifest{{"metadata", {{"run", run}, {"run_dir", run_dir}}}};
    testing::write_text(path + "/manifest.json", manifest.dump());
  }
  static void run(const std::string& name, const std::string& id, const std::string& started,
                  const std::vector<std::string>& steps, const std::string& program = "train") {
    const auto folder = "runs/" + name;
    fs::create_directories(folder);
    const nlohmann::json facts{{"run_id", id},
                               {"job_id", id},
                               {"started", "2026"},
                               {"lives", {{{"started", started}}}},
                               {"command", {"/bin/" + program, "--lr", "1"}}};
    testing::write_text(folder + "/run.json", facts.dump());
    for (const auto& step : steps) checkpoint(folder + "/checkpoints/" + step, id, folder);
  }

 private:
  ScratchDirectory folder_;
  const fs::path before_;
};

const RunIdentity kFresh{"fresh", 1'000'000'000};

RunChoice choose(const RunSettings& settings) { return choose_run(settings, kFresh, "./train"); }

}  // namespace

TEST_CASE("[R01] a run has a folder, and its checkpoints lie in it, unless the settings say otherwise") {
  const Runs runs;
  const auto none = choose({});
  CHECK(none.id == "fresh");
  CHECK(none.is_new_folder);
  CHECK(none.folder.starts_with("runs/2001"));
  CHECK(none.folder.find("-train-") != std::string::npos);
  CHECK(none.checkpoint_dir == none.folder + "/checkpoints");
  CHECK(none.resume.empty());

  const auto given = choose({"a", kNewRunFolder, ""});
  CHECK_FALSE(given.is_new_folder);
  CHECK(given.folder == "a");
  CHECK(given.checkpoint_dir == "a/checkpoints");
  CHECK(choose({"a", "c", ""}).checkpoint_dir == "c");
  CHECK(choose({"", kNewRunFolder, ""}).checkpoint_dir == "checkpoints");
}

TEST_CASE("[R01] resume goes on with the run whose best checkpoint it names") {
  const Runs runs;
  Runs::run("a", "A", "2026-02-01", {"step-00000018", "step-00000036"});
  testing::write_text("runs/a/checkpoints/best", pointer_text(18));
  for (const auto& settings :
       {RunSettings{"runs/a", kNewRunFolder, "best"}, RunSettings{kNewRunFolder, "runs/a/checkpoints", "best"},
        RunSettings{kNewRunFolder, kNewRunFolder, "runs/a/checkpoints/best"}}) {
    const auto choice = choose(settings);
    CHECK(choice.id == "A");
    CHECK(choice.folder == "runs/a");
    CHECK_FALSE(choice.is_new_folder);
    CHECK(choice.resume.ends_with("runs/a/checkpoints/step-00000018"));
  }
}

TEST_CASE("[R01] resume best goes on with this program's newest run that has a best checkpoint") {
  const Runs runs;
  Runs::run("a", "A", "2026-02-01", {"step-00000018", "step-00000036"});
  Runs::run("b", "B", "2026-03-01", {"step-00000018", "step-00000036"});
  Runs::run("c", "C", "2026-04-01", {"step-00000018"}, "another");
  const RunSettings settings{kNewRunFolder, kNewRunFolder, "best"};
  CHECK_THROWS_WITH(choose(settings), Catch::Contains("no run of train below runs/ has a best checkpoint") &&
                                          Catch::Contains("--resume latest"));
  for (const auto* run : {"a", "b", "c"})
    testing::write_text("runs/" + std::string(run) + "/checkpoints/best", pointer_text(18));
  const auto choice = choose(settings);
  CHECK(choice.id == "B");
  CHECK(choice.folder == "runs/b");
  CHECK_FALSE(choice.is_new_folder);
  CHECK(choice.checkpoint_dir == "runs/b/checkpoints");
  CHECK(choice.resume.ends_with("runs/b/checkpoints/step-00000018"));
  CHECK(choice.note == "goes on with runs/b");

  Runs::run("d", "D", "2026-05-01", {"step-00000018"});
  CHECK(choose(settings).note == "goes on with runs/b; runs/d is newer and has no best checkpoint");
  CHECK_THAT(choose({kNewRunFolder, kNewRunFolder, "best", true}).note,
             Catch::StartsWith("reads ") && Catch::EndsWith("runs/b/checkpoints/step-00000018"));
}

TEST_CASE("[R01] resume latest goes on with this program's newest run, in its folder and under its id") {
  const Runs runs;
  Runs::run("a", "A", "2026-02-01", {"step-00000018"});
  Runs::run("b", "B", "2026-03-01", {"step-00000018", "step-00000036"});
  Runs::run("c", "C", "2026-04-01", {"step-00000018"}, "another");
  for (const auto* word : {"latest", "auto"}) {
    const auto choice = choose({kNewRunFolder, kNewRunFolder, word});
    CHECK(choice.id == "B");
    CHECK(choice.folder == "runs/b");
    CHECK(choice.checkpoint_dir == "runs/b/checkpoints");
    CHECK(choice.resume == "latest");
    CHECK_FALSE(choice.is_new_folder);
  }

  SECTION("a newer one without a checkpoint is passed over, and said") {
    Runs::run("d", "D", "2026-05-01", {});
    const auto choice = choose({kNewRunFolder, kNewRunFolder, "latest"});
    CHECK(choice.id == "B");
    CHECK(choice.note == "goes on with runs/b; runs/d is newer and has no checkpoint");
  }
  SECTION("of a script that starts the program, by the folder's name") {
    Runs::run("20260601-120000-start.sh-abcd", "S", "2026-06-01", {"step-00000018"});
    CHECK(choose_run({kNewRunFolder, kNewRunFolder, "latest"}, kFresh, "./start.sh").id == "S");
  }
  SECTION("an earlier run that was resumed last is the newest") {
    Runs::run("a", "A", "2026-06-01", {"step-00000018"});
    CHECK(choose({kNewRunFolder, kNewRunFolder, "latest"}).id == "A");
  }
  SECTION("a program without a run folder of its own reads there") {
    const auto choice = choose({"", kNewRunFolder, "latest"});
    CHECK(choice.folder.empty());
    CHECK(choice.resume == "runs/b/checkpoints");
  }
  SECTION("in the folder given") {
    CHECK(choose({"runs/a", kNewRunFolder, "latest"}).id == "A");
    const auto checkpoints = choose({kNewRunFolder, "runs/a/checkpoints", "latest"});
    CHECK(checkpoints.id == "A");
    CHECK(checkpoints.folder == "runs/a");
    CHECK(checkpoints.checkpoint_dir == "runs/a/checkpoints");
  }
}

TEST_CASE("[R01] resume auto begins where there is nothing to go on from, resume latest is refused there") {
  const Runs runs;
  Runs::run("a", "A", "2026-02-01", {});
  const auto choice = choose({kNewRunFolder, kNewRunFolder, "auto"});
  CHECK(choice.id == "fresh");
  CHECK(choice.resume.empty());
  CHECK(choice.is_new_folder);
  CHECK(choose({"mine", kNewRunFolder, "auto"}).resume.empty());
  CHECK_THROWS_WITH(choose({kNewRunFolder, kNewRunFolder, "latest"}),
                    Catch::Contains("no run of train below runs/ has a checkpoint") &&
                        Catch::Contains("leave --resume out to start one"));
  CHECK_THROWS_WITH(choose({.resume = "latest", .asked_to_resume = false}),
                    Catch::Contains("train first") && !Catch::Contains("out to start"));
}

TEST_CASE("[R01] a run is named by its folder or its name, with a step or without") {
  const Runs runs;
  Runs::run("a", "A", "2026-02-01", {"step-00000018", "step-00000036"});
  Runs::run("b", "B", "2026-03-01", {"step-00000018"});
  fs::create_directory_symlink("a", "runs/latest");
  for (const auto* name : {"a", "runs/a", "./runs/a/", "latest@36", "runs/latest"}) {
    const auto choice = choose({kNewRunFolder, kNewRunFolder, name});
    CAPTURE(name);
    CHECK(choice.id == "A");
    CHECK(fs::equivalent(choice.folder, "runs/a"));
    CHECK_FALSE(fs::is_symlink(choice.folder));
  }
  const auto step = choose({kNewRunFolder, kNewRunFolder, "a@18"});
  CHECK(step.resume == "runs/a/checkpoints/step-00000018");
  CHECK(step.checkpoint_dir == "runs/a/checkpoints");
  CHECK_THROWS_WITH(choose({kNewRunFolder, kNewRunFolder, "a@19"}),
                    Catch::Contains("no checkpoint of step 19; it has those of steps 18, 36"));

  SECTION("a checkpoint's path says which run it is of") {
    const auto choice = choose({kNewRunFolder, kNewRunFolder, "runs/a/checkpoints/step-00000018"});
    CHECK(choice.id == "A");
    CHECK(choice.folder == "runs/a");
    CHECK(choice.resume == "runs/a/checkpoints/step-00000018");
  }
  SECTION("a copy of a checkpoint goes on as its run, in a new folder where the run's is gone") {
    Runs::checkpoint("copy/step-00000018", "gone", "runs/gone");
    const auto choice = choose({kNewRunFolder, kNewRunFolder, "copy/step-00000018"});
    CHECK(choice.id == "gone");
    CHECK(choice.is_new_folder);
  }
  SECTION("a folder that is now another run's is not taken for the checkpoint's") {
    Runs::checkpoint("copy/step-00000018", "before", "runs/a");
    CHECK(choose({kNewRunFolder, kNewRunFolder, "copy/step-00000018"}).is_new_folder);
  }
}

TEST_CASE("[R02] a resumed run is refused another run's folder and checkpoints, and names both") {
  const Runs runs;
  Runs::run("a", "A", "2026-02-01", {"step-00000018", "step-00000036"});
  Runs::run("b", "B", "2026-03-01", {"step-00000018", "step-00000054"});
  Runs::checkpoint("old/step-00000018", "", "");
  const auto refusal = [](const std::string& run_dir, const std::string& checkpoint_dir, const std::string& resume) {
    try {
      choose({run_dir, checkpoint_dir, resume});
      return std::string();
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::usage);
      return std::string(error.what());
    }
  };
  const std::string none = kNewRunFolder;
  for (const auto* from : {"runs/a", "a", "a@18", "runs/a/checkpoints", "runs/a/checkpoints/step-00000018"}) {
    CAPTURE(from);
    const auto than = std::string(" of another run than ") + from + ", which resume names";
    CHECK_THAT(refusal(none, "runs/b/checkpoints", from),
               Catch::Contains("checkpoint_dir: runs/b/checkpoints holds checkpoints" + than +
                               ", the newest of step 54; choose another --checkpoint_dir"));
    CHECK_THAT(refusal("runs/b", none, from), Catch::Contains("run_dir: runs/b is the folder" + than + "; leave"));
    CHECK(choose({"new", none, from}).id == "A");
    if (!std::string(from).starts_with("runs/a/")) continue;  // a run's name means its checkpoints in checkpoint_dir
    CHECK(choose({none, "new", from}).id == "A");
    CHECK_THAT(refusal("runs/b", "new", from), Catch::Contains("run_dir: runs/b is the folder" + than));
  }
  CHECK_THAT(refusal("runs/b", "runs/a/checkpoints", "latest"),
             Catch::Contains("run_dir: runs/b is the folder of another run than runs/a/checkpoints, which"));
  CHECK_THAT(refusal("new", "runs/b/checkpoints", "old"), Catch::Contains("holds checkpoints of another run than"));
  CHECK_THAT(refusal("runs/b", none, "old"),
             Catch::Contains("runs/b/checkpoints holds checkpoints of another run than"));
  CHECK_THAT(refusal(none, "old", "runs/a/checkpoints"), Catch::Contains("holds checkpoints of another run than"));

  SECTION("its own go on: where they lie, renamed, moved, copied, and forked") {
    CHECK(choose({"runs/a", none, "latest"}).id == "A");
    CHECK(choose({"runs/a", "runs/a/checkpoints", "step-00000018"}).id == "A");
    fs::rename("runs/a", "moved");
    for (const auto* from : {"latest", "best", "moved", "moved@18", "moved/checkpoints"}) {
      if (std::string(from) == "best") testing::write_text("moved/checkpoints/best", pointer_text(18));
      CHECK(choose({"moved", none, from}).id == "A");
    }
    fs::copy("moved/checkpoints", "fork", fs::copy_options::recursive);
    Runs::checkpoint("fork/step-00000040", "A", "moved");
    CHECK(choose({none, "fork", "latest"}).id == "A");
    CHECK(choose({"moved", "fork", "moved@18"}).id == "A");
  }
  SECTION("older checkpoints that name no run go on where they lie, beside those of their later lives") {
    CHECK(choose({none, "old", "latest"}).id == "fresh");
    Runs::checkpoint("old/step-00000036", "later", "");
    CHECK(choose({none, "old", "old/step-00000018"}).id == "fresh");
    CHECK(choose({"new", "empty", "old/step-00000018"}).id == "fresh");
  }
}

TEST_CASE("[R01] a run whose newest manifest is damaged, or has 20 MiB, is still itself") {
  const Runs runs;
  Runs::run("a", "A", "2026-02-01", {"step-00000018", "step-00000036"});
  SECTION("damaged") { testing::write_text("runs/a/checkpoints/step-00000036/manifest.json", "{\"metadata\": "); }
  SECTION("large") {
    const nlohmann::json manifest{{"metadata", {{"run", "A"}, {"run_dir", "runs/a"}}},
                                  {"tensors", std::string(20 << 20, 'x')}};
    testing::write_text("runs/a/checkpoints/step-00000036/manifest.json", manifest.dump());
    fs::remove_all("runs/a/checkpoints/step-00000018");
  }
  for (const auto& settings :
       {RunSettings{"runs/a", kNewRunFolder, "latest"}, RunSettings{kNewRunFolder, "runs/a/checkpoints", "latest"},
        RunSettings{kNewRunFolder, kNewRunFolder, "runs/a/checkpoints"}}) {
    const auto choice = choose(settings);
    CHECK(choice.id == "A");
    CHECK(choice.folder == "runs/a");
  }
}

TEST_CASE("[R01] a folder says whose checkpoints it has if none of their manifests can be read") {
  const Runs runs;
  Runs::run("a", "A", "2026-02-01", {"step-00000018"});
  testing::write_text("runs/a/checkpoints/step-00000018/manifest.json", "");
  CHECK(choose({"runs/a", kNewRunFolder, "latest"}).id == "A");
}

TEST_CASE("[U05] validate_only reads a run's checkpoint as a run apart, in a folder that is new") {
  const Runs runs;
  Runs::run("a", "A", "2026-02-01", {"step-00000018", "step-00000036"});
  const auto validate = [](const std::string& run_dir, const std::string& checkpoint_dir, const std::string& resume) {
    return choose({run_dir, checkpoint_dir, resume, true});
  };
  const auto newest = validate(kNewRunFolder, kNewRunFolder, "latest");
  CHECK(newest.id == "fresh");
  CHECK(newest.is_apart);
  CHECK(newest.is_new_folder);
  CHECK(newest.folder.starts_with("runs/2001"));
  CHECK(newest.checkpoint_dir == newest.folder + "/checkpoints");
  CHECK(newest.resume == "runs/a/checkpoints");
  CHECK(newest.note == "reads runs/a/checkpoints");
  CHECK(validate(kNewRunFolder, kNewRunFolder, "a@18").resume == "runs/a/checkpoints/step-00000018");
  CHECK(validate(kNewRunFolder, kNewRunFolder, "a").resume == "runs/a/checkpoints");
  CHECK(validate(kNewRunFolder, "runs/a/checkpoints", "latest").resume == "runs/a/checkpoints");
  const auto best = validate("records", "runs/a/checkpoints", "step-00000018");
  CHECK(best.folder == "records");
  CHECK(best.checkpoint_dir == "runs/a/checkpoints");
  CHECK(best.resume == "step-00000018");
  CHECK(validate(kNewRunFolder, kNewRunFolder, "").resume.empty());
  CHECK_THROWS_WITH(validate("runs/a", kNewRunFolder, "latest"),
                    Catch::Contains("runs/a is a run's folder, and validate_only keeps records of its own") &&
                        Catch::Contains("--resume runs/a reads that run"));
  CHECK_FALSE(choose({kNewRunFolder, kNewRunFolder, "latest"}).is_apart);
}

TEST_CASE("[R04] the launcher reads ahead what a program is given, and the later wins") {
  const ScratchDirectory folder;
  const auto file = folder / "train.toml";
  testing::write_text(file, "[run]\nrun_dir = \"file\"\n[checkpoint]\nresume = \"latest\"\n[odd]\nx = 1\n");
  const std::vector<std::string> names{"run_dir", "resume"};
  const auto ahead = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "./train");
    return settings_ahead(words, names);
  };
  CHECK(ahead({}).empty());
  CHECK(ahead({"--config", file})["run_dir"] == "file");
  CHECK(ahead({"--config=" + file, "--lr", "1"})["resume"] == "latest");
  for (const auto& words : std::vector<std::vector<std::string>>{{"--run_dir", "flag"},
                                                                 {"--run-dir=flag"},
                                                                 {"--run.run_dir", "flag"},
                                                                 {"--progress_bar", "--run-dir", "flag"}})
    CHECK(ahead(words)["run_dir"] == "flag");
  CHECK(ahead({"--config", file, "--run_dir", ""}).at("run_dir").empty());
  CHECK(ahead({"--run_dir", "--lr", "1"}).empty());
  for (const auto& words : std::vector<std::vector<std::string>>{{"./train", "--validate-only"},
                                                                 {"./train", "--validate_only", "--lr", "1"},
                                                                 {"./train", "--validate-only", "true"}})
    CHECK(settings_ahead(words, {"validate_only"})["validate_only"] == "true");
  ::setenv("TROUPE_RUN_DIR", "variable", 1);
  CHECK(ahead({"--config", file})["run_dir"] == "variable");
  CHECK(ahead({"--run_dir", "flag"})["run_dir"] == "flag");
  ::unsetenv("TROUPE_RUN_DIR");
  testing::write_text(file, "run_dir = ");
  CHECK(ahead({"--config", file}).empty());
  CHECK(ahead({"--config", folder / "none.toml"}).empty());
}

TEST_CASE("what the parts of a job know of the run comes back from its text") {
  const RunOfJob run{"job", "runs/a", "run", ""};
  const auto back = RunOfJob::from_text(run.to_text());
  CHECK(back.job_id == "job");
  CHECK(back.folder == "runs/a");
  CHECK(back.run_id == "run");
  CHECK(back.checkpoint.empty());
  CHECK_THROWS_AS(RunOfJob::from_text("job\nruns/a\n"), Error);
}
