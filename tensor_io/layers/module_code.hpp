#pragma once
#include <cstdint>

namespace troupe {

/// A module whose code is in a file. All ranks of a job need the same one: the hash is compared at each step's vote.
class ModuleCode {
 public:
  virtual ~ModuleCode() = default;
  virtual std::uint64_t file_hash() const noexcept = 0;
};

}  // namespace troupe
