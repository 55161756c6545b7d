#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

#include "tensor_io/layout/named_state.hpp"

namespace troupe {

/// Copies of live tensors, for a checkpoint that is written while training goes on. The step waits for the copy alone,
/// so it must not wait for the operating system to find and clear pages each time: the memory is one block that stays.
/// It has the tensors one behind the other in the order of their future file, beginning at a page. The copy hashes on
/// the way, since fetching takes the processor's time. So the writer of the file need not read it once more. One
/// owner.
class Snapshot {
 public:
  /// `limit`: bytes that the block may have.
  explicit Snapshot(std::int64_t limit = INT64_MAX) : limit_(limit) {}

  /// Brings the part's tensors into a file's order and copies the last of them, as many as fit into `limit`. Their
  /// pieces then are views of the block: valid until the next call. Returns the number of tensors that stayed live, the
  /// first ones. The part gets the hashes of the chunks that were copied from the processor's memory; of a small file
  /// none. The first call allocates.
  std::size_t take(CheckpointPart& part);
  std::int64_t bytes() const noexcept { return block_.defined() ? block_.numel() : 0; }

 private:
  std::int64_t limit_;
  at::Tensor block_;  // (bytes,) u8, page-aligned
};

}  // namespace troupe
