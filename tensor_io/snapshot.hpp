#pragma once
#include <ATen/core/Tensor.h>

#include "tensor_io/named_state.hpp"

namespace troupe {

/// Copies of live tensors, for a checkpoint that is written while training goes on. The step waits for the copy alone, so it must not wait
/// for the operating system to find and clear pages each time: the memory is one block that stays, with the tensors one behind the other in
/// the order of the file that they will be written to, beginning at a page. One owner.
class Snapshot {
 public:
  /// The tensors' values as they are now, on the CPU, contiguous, in the order given. Views of the block: valid until the next call. The
  /// first one allocates.
  NamedTensors take(const NamedTensors& live);
  std::int64_t bytes() const noexcept { return block_.defined() ? block_.numel() : 0; }

 private:
  at::Tensor block_;  // (bytes,) u8, page-aligned
};

}  // namespace troupe
