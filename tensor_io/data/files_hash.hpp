#pragma once
#include <cstdint>
#include <string>

#include "tensor_io/files/xxh3.hpp"

namespace troupe {

/// One number for a list of files in their order (Dataset::files_hash).
class FilesHash {
 public:
  /// `holds`: bytes, samples, tokens or another number that distinguishes two files of one name.
  void add(const std::string& name, std::int64_t holds) {
    value_ = xxh3(name + '\0' + std::to_string(holds) + '\0' + std::to_string(value_));
  }
  std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0;
};

}  // namespace troupe
