#pragma once
#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "tensor_io/communicator/rendezvous.hpp"

namespace troupe::test {

/// A rendezvous of processes: one file per key in a folder.
class FileRendezvous final : public Rendezvous {
 public:
  explicit FileRendezvous(std::filesystem::path folder) : folder_(std::move(folder)) {}

  void put(const std::string& key, std::string value) override {
    const auto path = path_of(key);
    const auto temporary = path.string() + ".tmp";
    std::ofstream(temporary, std::ios::binary) << value;
    std::filesystem::rename(temporary, path);
  }

  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (!std::filesystem::exists(path_of(key))) {
      throw_if_aborted("rendezvous for '" + key + "'");
      if (std::chrono::steady_clock::now() > deadline)
        throw Error(ErrorCode::timeout, "rendezvous for '" + key + "'", "nobody published it");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::ostringstream text;
    text << std::ifstream(path_of(key), std::ios::binary).rdbuf();
    return text.str();
  }

  void abort(const ErrorReport&) noexcept override { aborted_ = true; }
  void throw_if_aborted(const std::string& operation) override {
    if (aborted_) throw Error(ErrorCode::aborted, operation, "aborted");
  }

 private:
  std::filesystem::path path_of(std::string key) const {
    for (auto& c : key) c = c == '/' ? '_' : c;
    return folder_ / key;
  }

  std::filesystem::path folder_;
  std::atomic<bool> aborted_{false};
};

}  // namespace troupe::test
