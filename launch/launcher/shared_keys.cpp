#include "launch/launcher/shared_keys.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

std::string of_node(const std::string& folder, int node) { return folder + "/node" + std::to_string(node); }

[[noreturn]] void refuse(const std::string& folder, const std::error_code& failure) {
  throw Error(ErrorCode::io, folder, failure.message(),
              "an srun job keeps its keys below --run-dir: choose another one, or give --keys DIR");
}

}  // namespace

void write_keys_of_nodes(const std::string& folder, int nodes) {
  if (::mkdir(folder.c_str(), 0700) != 0)
    throw Error(ErrorCode::io, folder, std::strerror(errno), "name a folder that does not exist yet");
  const KeyMaker maker;
  for (int node = 0; node < nodes; ++node)
    KeyFolder::write(of_node(folder, node), maker.keys_for("node" + std::to_string(node)));
}

SharedKeys::SharedKeys(std::string folder, int nodes) : folder_(std::move(folder)) {
  const auto unfinished = folder_ + "." + random_token().substr(0, 8);
  std::error_code failure, none;
  fs::create_directories(fs::path(folder_).parent_path(), failure);
  if (failure) refuse(folder_, failure);
  write_keys_of_nodes(unfinished, nodes);
  own_ = KeyFolder::read(of_node(unfinished, 0));
  if (fs::exists(fs::symlink_status(folder_, none))) {
    KeyFolder::require_private(folder_);
    fs::remove_all(folder_, failure);
  }
  if (!failure) fs::rename(unfinished, folder_, failure);
  if (!failure) return;
  const auto why = failure;
  fs::remove_all(unfinished, failure);
  refuse(folder_, why);
}

SharedKeys::~SharedKeys() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

JobKeys SharedKeys::await(const std::string& folder, int node, std::chrono::milliseconds patience,
                          const std::function<bool()>& stopped) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  std::error_code ignored;
  bool said = false;
  while (!fs::exists(fs::symlink_status(folder, ignored))) {
    if (!std::exchange(said, true))
      std::fprintf(stderr, "troupe: node %d waits for node 0's keys in %s\n", node, folder.c_str());
    if (stopped()) throw Error(ErrorCode::interrupted, "--slurm", "stopped while it waited for node 0");
    if (std::chrono::steady_clock::now() > deadline)
      throw Error(ErrorCode::unavailable, "--slurm",
                  "node 0 has put no keys into " + folder + " within " + std::to_string(patience / 1s) + " s",
                  "put it on a file system that all nodes share, or make keys with troupe keys DIR and give --keys DIR "
                  "on every node");
    std::this_thread::sleep_for(100ms);
  }
  KeyFolder::require_private(folder);
  return KeyFolder::read(of_node(folder, node));
}

}  // namespace troupe
