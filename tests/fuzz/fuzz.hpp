#pragma once
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "tensor_io/base/error.hpp"

/// Input from nobody that we trust ends in a value or in an Error that a person can read; a target calls this around
/// what it tries.
namespace troupe::fuzz {

template <class Work>
int try_input(Work&& work) {
  try {
    work();
  } catch (const Error& error) {
    const std::string_view text = error.what();
    const auto code = error.code();
    const bool expected = code == ErrorCode::usage || code == ErrorCode::bad_data || code == ErrorCode::mismatch ||
                          code == ErrorCode::unavailable || code == ErrorCode::io || code == ErrorCode::not_finite;
    if (!expected || text.empty() || text.find('\n') != text.npos || text.size() > 4096) {
      std::fprintf(stderr, "no error for a user: code %d, %zu bytes: %.*s\n", static_cast<int>(code), text.size(),
                   static_cast<int>(text.size()), text.data());
      std::abort();
    }
  }
  return 0;
}

/// The input as a file, in memory where that is possible.
class InputFile {
 public:
  explicit InputFile(std::string_view name) {
    const auto root = std::filesystem::is_directory("/dev/shm") ? std::filesystem::path("/dev/shm")
                                                                : std::filesystem::temp_directory_path();
    folder_ = root / ("troupe-fuzz-" + std::to_string(::getpid()) + "-" + std::string(name));
    std::filesystem::create_directories(folder_);
    path_ = folder_ / name;
  }
  ~InputFile() { std::filesystem::remove_all(folder_); }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  std::string write(std::string_view bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path_.string();
  }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_, path_;
};

inline std::string_view text_of(const std::uint8_t* data, std::size_t bytes) {
  return {reinterpret_cast<const char*>(data), bytes};
}

}  // namespace troupe::fuzz

#define TROUPE_FUZZ_TARGET extern "C" int LLVMFuzzerTestOneInput
