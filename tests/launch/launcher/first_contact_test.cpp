// What somebody meets first: a project of one's own, the merged settings, completion, help.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "launch/config/config.hpp"
#include "tests/catch.hpp"
#include "tests/support/running_process.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;

namespace {

testing::Finished run_troupe(std::vector<std::string> words,
                             const std::map<std::string, std::string>& environment = {}) {
  words.insert(words.begin(), TROUPE_PROGRAM);
  return testing::RunningProcess(words, environment).finish();
}

std::string text_of_file(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// What bash offers behind these words.
std::string bash_offers(const testing::ScratchDirectory& folder, const std::vector<std::string>& words) {
  std::string line;
  for (const auto& word : words) line += " '" + word + "'";
  testing::write_text(folder / "complete.sh", "source '" + folder / "troupe.bash" + "'\nCOMP_WORDS=(" + line +
                                                  ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n" +
                                                  "_troupe\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n");
  const auto done = testing::RunningProcess({"/bin/bash", folder / "complete.sh"}).finish();
  CHECK(done.code == 0);
  return "\n" + done.output;
}

}  // namespace

TEST_CASE("[L01] the command is there at once: it loads no LibTorch, but for what reads tensors") {
  const auto libraries = [](const std::string& program) {
    return testing::RunningProcess({program}, {{"LD_TRACE_LOADED_OBJECTS", "1"}}).finish().output;
  };
  CHECK_THAT(libraries(TROUPE_PROGRAM),
             Catch::Contains("libc.so") && !Catch::Contains("libtorch") && !Catch::Contains("libc10"));
  CHECK_THAT(libraries(std::string(TROUPE_PROGRAM) + "-checkpoint"), Catch::Contains("libtorch"));
}

TEST_CASE("[U01] a TROUPE_FAULT that can't be read is refused before a run is chosen") {
  const testing::ScratchDirectory folder;
  const auto done = run_troupe({"launch", "--nproc", "2", "--run-dir", folder / "run", "/bin/true"},
                               {{"TROUPE_FAULT", "slot=1,step=3,at=voet"}});
  CHECK(done.code == 2);
  CHECK_THAT(done.output, Catch::Contains("TROUPE_FAULT: 'voet' is not a fault point; known: allocate"));
  CHECK(std::count(done.output.begin(), done.output.end(), '\n') == 1);
  CHECK_FALSE(std::filesystem::exists(folder / "run"));
}

TEST_CASE("[C03] a command whose other half is missing says so") {
  const testing::ScratchDirectory folder;
  std::filesystem::copy_file(TROUPE_PROGRAM, folder / "troupe");
  const auto done = testing::RunningProcess({folder / "troupe", "checkpoint", "ls", folder.path()}).finish();
  CHECK(done.code == 69);
  CHECK_THAT(done.output, Catch::Contains("troupe-checkpoint: No such file or directory; build or install Troupe "
                                          "again: the program comes with this command"));
}

TEST_CASE("[E03] troupe new writes a project named after its folder, and nothing where something is") {
  testing::ScratchDirectory folder;
  const auto made = run_troupe({"new", folder / "my-digits"});
  INFO(made.output);
  CHECK(made.code == 0);
  CHECK_THAT(made.output, Catch::Contains("cmake -G Ninja -B build -DCMAKE_PREFIX_PATH=") &&
                              Catch::Contains("launch --nproc 2 build/my-digits"));
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "my-digits")) {
    ++files;
    CHECK_THAT(text_of_file(entry.path().string()), !Catch::Contains("my_project"));
  }
  CHECK(files == 6);
  CHECK_THAT(text_of_file(folder / "my-digits/CMakeLists.txt"), Catch::Contains("add_executable(my-digits main.cpp)"));
  const auto main_file = text_of_file(folder / "my-digits/main.cpp");
  CHECK(std::count(main_file.begin(), main_file.end(), '\n') <= 60);

  testing::write_text(folder / "my-digits/main.cpp", "mine");
  const auto again = run_troupe({"new", folder / "my-digits"});
  CHECK(again.code == 2);
  CHECK_THAT(again.output, Catch::Contains("already exists and is not an empty folder"));
  CHECK(text_of_file(folder / "my-digits/main.cpp") == "mine");
  CHECK(run_troupe({"new", folder / "my-digits/main.cpp"}).code == 2);
  CHECK(run_troupe({"new"}).code == 2);
  for (const char* name : {"9lives", "a b", "test", "-x"}) CHECK(run_troupe({"new", folder / name}).code == 2);
  std::filesystem::create_directory(folder / "empty");
  CHECK(run_troupe({"new", folder / "empty/"}).code == 0);
}

TEST_CASE("[L01] a flag of launch that has no effect in this job is refused") {
  const auto refused = [](std::vector<std::string> flags) {
    flags.insert(flags.begin(), "launch");
    flags.emplace_back("true");
    const auto done = run_troupe(flags);
    CHECK(done.code == 2);
    return done.output;
  };
  CHECK_THAT(refused({"--node_rank", "1"}), Catch::Contains("--node-rank: only a job of --nnodes has numbered nodes"));
  CHECK_THAT(refused({"--address=1.2.3.4"}), Catch::Contains("--address: only a job of --hosts"));
  CHECK_THAT(refused({"--no-recovery", "--spares", "1"}),
             Catch::Contains("without recovery no rank is replaced; remove --no-recovery, or leave --spares out"));
}

TEST_CASE("[E03] troupe new of a wheel says that there is nothing to build against, and not how to build") {
  testing::ScratchDirectory folder;
  std::filesystem::create_directories(folder / "wheel/bin");  // programs alone
  std::filesystem::copy_file(TROUPE_PROGRAM, folder / "wheel/bin/troupe");
  const auto made = testing::RunningProcess({folder / "wheel/bin/troupe", "new", folder / "mine"}).finish();
  INFO(made.output);
  CHECK(made.code == 0);
  CHECK_THAT(made.output, Catch::Contains("a wheel does not include them") && Catch::Contains("install the .deb") &&
                              !Catch::Contains("cmake -B"));
  std::filesystem::create_directories(folder / "wheel/lib/some-linux-gnu/cmake/troupe");
  CHECK_THAT(testing::RunningProcess({folder / "wheel/bin/troupe", "new", folder / "mine2"}).finish().output,
             Catch::Contains("cmake -G Ninja -B build"));
}

TEST_CASE("[T04] troupe config dump says each value and its source, and reads back equal") {
  testing::ScratchDirectory folder;
  testing::write_text(folder / "a.toml", "[optimizer]\nlr = 0.5\nmomentum = 0.25\n[training]\nepochs = 7\n");
  const std::map<std::string, std::string> environment{{"TROUPE_MOMENTUM", "0.75"}, {"TROUPE_EPOCHS", "8"}};
  const auto dump =
      run_troupe({"config", "dump", "--config", folder / "a.toml", "--training.epochs", "9", "--data_dir", "a \"b\""},
                 environment);
  CHECK(dump.code == 0);
  CHECK_THAT(dump.output, Catch::Contains("lr = 0.5  # from " + folder / "a.toml" + ":2\n"));
  CHECK_THAT(dump.output, Catch::Contains("momentum = 0.75  # from TROUPE_MOMENTUM\n"));
  CHECK_THAT(dump.output, Catch::Contains("epochs = 9  # from --training.epochs\n") &&
                              Catch::Contains("batch_size = 64  # default\n"));
  testing::write_text(folder / "b.toml", dump.output);
  const auto back = run_troupe({"config", "dump", "--config", folder / "b.toml"});
  CHECK(back.code == 0);
  const auto values = [&](const std::string& text, const std::string& name) {
    testing::write_text(folder / name, text);
    Config config;
    read_config_file(config, folder / name);
    return config_to_json(config);
  };
  CHECK(values(dump.output, "c.toml") == values(back.output, "d.toml"));
  CHECK(run_troupe({"config", "dmp"}).code == 2);
  CHECK_THAT(run_troupe({"config", "dump", "--learning_rate", "1"}).output, Catch::Contains("there is no setting"));
}

TEST_CASE("[T04] every verb's help is short and ends with an example") {
  for (const char* verb :
       {"launch", "doctor", "checkpoint", "report", "top", "ps", "keys", "config", "new", "completion"}) {
    INFO(verb);
    const auto help = run_troupe({verb, "--help"});
    CHECK(help.code == 0);
    CHECK_THAT(help.output, Catch::StartsWith(std::string("usage: troupe ") + verb) && Catch::Contains("example"));
    CHECK(std::count(help.output.begin(), help.output.end(), '\n') <= 64);
    CHECK_THAT(run_troupe({"--help"}).output, Catch::Contains(std::string("\n  ") + verb));
    if (verb == std::string("launch")) continue;  // behind PROGRAM all words are the program's
    CHECK(run_troupe({verb, "a", "b", "c", "--help"}).output == help.output);
    CHECK(run_troupe({verb, "-h", "a", "b", "c"}).output == help.output);
  }
}

TEST_CASE("[T04] completion offers verbs, their words, and the flags of their help") {
  testing::ScratchDirectory folder;
  testing::write_text(folder / "troupe.bash", run_troupe({"completion", "bash"}).output);
  CHECK_THAT(bash_offers(folder, {TROUPE_PROGRAM, "do"}), Catch::Equals("\ndoctor\n"));
  CHECK_THAT(bash_offers(folder, {TROUPE_PROGRAM, "checkpoint", "v"}), Catch::Equals("\nverify\n"));
  CHECK_THAT(bash_offers(folder, {TROUPE_PROGRAM, "launch", "--np"}),
             Catch::Contains("\n--nproc\n") && Catch::Contains("\n--nproc-per-node\n"));
  CHECK_THAT(bash_offers(folder, {TROUPE_PROGRAM, "top", "--o"}), Catch::Equals("\n--once\n"));
  testing::write_text(folder / "a_file", "");
  CHECK_THAT(bash_offers(folder, {TROUPE_PROGRAM, "launch", folder / "a_f"}),
             Catch::Contains("\n" + folder / "a_file" + "\n"));
  CHECK(run_troupe({"completion", "tcsh"}).code == 2);
  for (const auto& [shell, check] :
       std::vector<std::pair<std::string, std::string>>{{"zsh", "-n"}, {"fish", "--no-execute"}}) {
    testing::write_text(folder / shell, run_troupe({"completion", shell}).output);
    const auto path = "/usr/bin/" + shell;
    if (!std::filesystem::exists(path)) {
      WARN("SKIPPED: there is no " + shell + " to read its script");
      continue;
    }
    const auto read = testing::RunningProcess({path, check, folder / shell}).finish();
    INFO(read.output);
    CHECK(read.code == 0);
  }
}
