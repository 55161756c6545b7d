#include <filesystem>

#include "tests/catch.hpp"
#include "tests/support/running_process.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;

TEST_CASE("[L04] a setting of the launcher's environment is that of the ranks which ssh starts") {
  const testing::ScratchDirectory folder;
  // As sshd's login shell gets its one word, with an environment of the host.
  testing::write_text(folder / "ssh",
                      "#!/bin/sh\nfor word; do :; done\nexec env -i PATH=/usr/bin:/bin sh -c \"$word\"\n");
  std::filesystem::permissions(folder / "ssh", std::filesystem::perms::owner_all);
  testing::write_text(folder / "hosts", "here slots=1 address=127.0.0.1\nthere slots=1 address=0.0.0.0\n");
  const auto done = testing::RunningProcess({TROUPE_PROGRAM, "launch", "--no-recovery", "--hosts", folder / "hosts",
                                             "--run-dir", folder / "run", TROUPE_RANK_PROBE, "--batch_size", "16",
                                             "--save_every", "-1", "--max_steps", "12"},
                                            {{"PATH", folder.path() + ":/usr/bin:/bin"}, {"TROUPE_LR", "0.25"}})
                        .finish();
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK_THAT(done.output, Catch::Contains("lr 0.25"));
}
