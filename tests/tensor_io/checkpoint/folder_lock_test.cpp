#include "tensor_io/files/folder_lock.hpp"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"
#include "tests/catch.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

int knows_no_locks(int /*file*/, int /*operation*/) {
  errno = ENOLCK;
  return -1;
}

FolderLock::Options without_locks(std::chrono::milliseconds beat = 5s) {
  return {.beat = beat, .flock = &knows_no_locks};
}

std::string refusal(const std::string& file, const FolderLock::Options& options) {
  try {
    const FolderLock lock(file, file, "the folder", "take another", options);
    return {};
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::unavailable);
    return error.what();
  }
}

void age(const std::string& file, std::chrono::seconds by) {
  std::filesystem::last_write_time(file, std::filesystem::file_time_type::clock::now() - by);
}

}  // namespace

TEST_CASE("[R2] a folder is one job's, and a second one is refused, with flock and without") {
  const testing::ScratchDirectory folder;
  const auto file = folder / "lock";
  const auto options = GENERATE(FolderLock::Options(), without_locks());
  {
    const FolderLock first(file, file, folder.path(), "", options);
    first.sign();
    const auto why = refusal(file, options);
    CHECK_THAT(why, Catch::Contains("the folder: another job (process ") && Catch::Contains(" since 20") &&
                        Catch::Contains("is using this folder; take another"));
  }
  CHECK(refusal(file, options).empty());
}

TEST_CASE("[R2] a checkpoint folder is locked without a file in it, where flock is known") {
  const testing::ScratchDirectory folder;
  const auto lock = lock_directory(folder.path());
  CHECK(std::filesystem::is_empty(folder.path()));
  CHECK_THAT(refusal(folder.path(), {}), Catch::Contains("another job is using this folder"));
}

TEST_CASE("[R2] where no flock is known a folder is free 30 s after its holder's last sign of life") {
  const testing::ScratchDirectory folder;
  const auto file = folder / "lock";
  std::ofstream(file) << "process 7 on elsewhere since 2026-01-01 00:00:00\n";
  age(file, 25s);
  CHECK_THAT(refusal(file, without_locks()), Catch::Contains("process 7 on elsewhere"));
  age(file, 31s);
  CHECK(refusal(file, without_locks()).empty());
  CHECK(std::filesystem::is_empty(folder.path()));  // the one that took it over has ended
}

TEST_CASE("[R2] where no flock is known the holder touches its file") {
  const testing::ScratchDirectory folder;
  const auto file = folder / "lock";
  const FolderLock lock(file, file, folder.path(), "", without_locks(1ms));
  age(file, 60s);
  const auto long_ago = std::filesystem::file_time_type::clock::now() - 30s;
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while (std::filesystem::last_write_time(file) < long_ago && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(1ms);
  CHECK(std::filesystem::last_write_time(file) > long_ago);
}
