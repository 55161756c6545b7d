#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "launch/launcher/first_words.hpp"
#include "tests/catch.hpp"
#include "tests/support/count_of.hpp"
#include "tests/support/launch.hpp"

using namespace troupe;

namespace {

using Words = std::vector<std::string>;

testing::Finished launched(const testing::ScratchDirectory& folder, const Words& flags, const Words& arguments) {
  Words command{TROUPE_PROGRAM, "launch", "--run-dir", folder / "run"};
  command.insert(command.end(), flags.begin(), flags.end());
  command.emplace_back(TROUPE_RANK_PROBE);
  command.insert(command.end(), arguments.begin(), arguments.end());
  return testing::RunningProcess(command).finish();
}

}  // namespace

TEST_CASE("[L09] a mistake in the settings is on the screen once, however many ranks make it, and in each rank's log") {
  const testing::ScratchDirectory folder;
  testing::write_text(folder / "hosts", "a slots=2 address=127.0.0.1\nb slots=2 address=127.0.0.2\n");
  const bool one_host = GENERATE(true, false);
  const auto done =
      launched(folder, one_host ? Words{"--nproc", "4"} : Words{"--hosts", folder / "hosts"}, {"--lrr", "0.1"});
  INFO(done.output);
  CHECK(done.code == 2);
  CHECK(testing::count_of(done.output, "there is no setting 'lrr'; did you mean lr?") == 1);
  CHECK_THAT(done.output, !Catch::Contains("failed:") && !Catch::Contains("next:"));
  for (const auto rank : {"0", "1", "2", "3"})
    CHECK_THAT(testing::read_text(folder / "run/rank" + rank + ".log"), Catch::Contains("no setting 'lrr'"));
}

TEST_CASE("[L09] the help and the settings of a launched program come once") {
  const testing::ScratchDirectory folder;
  const auto [flag, line] =
      GENERATE(table<std::string, std::string>({{"--help", "usage: "}, {"--print-config", "batch_size = "}}));
  const auto done = launched(folder, {"--nproc", "3"}, {flag});
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK(testing::count_of(done.output, line) == 1);
}

TEST_CASE("[L09] only a rank's first line can be left out, and only if it is another rank's error") {
  FirstWords words;
  CHECK(words.is_news("rank 0", "error: a"));
  CHECK_FALSE(words.is_news("rank 1", "error: a"));
  CHECK(words.is_news("rank 0", "error: a"));
  CHECK(words.is_news("rank 2", "error: b"));
  CHECK(words.is_news("rank 3", "hello"));
  CHECK(words.is_news("rank 4", "hello"));
  CHECK(words.is_news("rank 3", "error: a"));  // later: its own failure
}

TEST_CASE("[L09] [L03] a list of hosts may be longer than a file's name") {
  std::string list = "a1:1";
  for (int host = 2; host <= 200; ++host) list += ",a" + std::to_string(host) + ":1";
  const auto done =
      testing::RunningProcess({TROUPE_PROGRAM, "launch", "--hosts", list, "--dry-run", "/bin/true"}).finish();
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK_THAT(done.output, Catch::Contains("a200"));
}

TEST_CASE("[L09] a path that can't be looked at is refused in one line, with the setting and the path") {
  const testing::ScratchDirectory folder;
  std::filesystem::create_symlink("loop", folder.path() + "/loop");
  const auto done = launched(folder, {}, {"--checkpoint_dir", folder / "loop"});
  INFO(done.output);
  CHECK(done.code == 74);
  CHECK_THAT(done.output, Catch::StartsWith("troupe: ") && Catch::Contains("checkpoint_dir: '") &&
                              Catch::Contains("loop' cannot be read: Too many levels of symbolic links"));
  CHECK(testing::count_of(done.output, "\n") == 1);
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  const auto config = launched(folder, {}, {"--config", folder / "pipe"});
  INFO(config.output);
  CHECK(config.code == 2);
  CHECK_THAT(config.output, Catch::Contains("it is not a regular file"));
  const auto keep =
      testing::RunningProcess({TROUPE_PROGRAM, "debug", "--keep", folder / "loop/x", TROUPE_RANK_PROBE}).finish();
  INFO(keep.output);
  CHECK(keep.code == 74);
  CHECK_THAT(keep.output, Catch::Contains("Too many levels of symbolic links; name another folder: --keep"));
}
