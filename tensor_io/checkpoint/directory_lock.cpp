#include "tensor_io/checkpoint/directory_lock.hpp"

#include <filesystem>

#include "tensor_io/files/file_layer.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

std::string made(const std::string& directory) {
  std::error_code error;
  refuse_foreign_link(directory);
  std::filesystem::create_directories(directory, error);
  if (error) throw_io_error("creating the checkpoint directory", directory, error.value());
  return directory;
}

}  // namespace

// A rank that was killed a moment ago may still hold it.
DirectoryLock::DirectoryLock(const std::string& directory)
    : lock_(made(directory), directory + "/.lock", directory, "give each job a checkpoint_dir of its own",
            {.patience = 5s}) {}

}  // namespace troupe
