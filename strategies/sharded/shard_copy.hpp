#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensor_io/layout/named_state.hpp"

namespace troupe {

/// A copy of a shard of the state: of which shard, and of which step.
struct HeldShard {
  std::uint64_t generation = 0;  ///< that cut the state so
  std::int64_t step = 0;         ///< steps done
  std::int32_t shard = 0, shards = 1;
  std::int64_t bytes = 0;  ///< of the copy

  bool operator==(const HeldShard&) const = default;
};

/// The text in which ranks report their copies: "[[GENERATION,STEP,SHARD,SHARDS,BYTES]]". Throws Error(bad_data).
std::string to_text(const std::vector<HeldShard>& held);
std::vector<HeldShard> held_shards_of(std::string_view text);

/// Tensors end to end, with their names and their HeldShard. The bytes: XXH3-64 of all that follows (u64), length of
/// the head (u64), the head (JSON), the tensors in its order, each at 64 bytes.
struct ShardCopy {
  HeldShard held;
  std::string note;      ///< the program's
  NamedTensors tensors;  ///< views of `bytes`
  at::Tensor bytes;      ///< (n,) u8: all of it, as sent

  /// From the bytes of a ShardPacker, on this rank or another. Throws Error(bad_data) for any others: tensors that do
  /// not tile the memory, a name that comes twice, a flipped bit.
  static ShardCopy unpack(at::Tensor bytes);
};

/// Writes a ShardCopy's bytes into existing memory. Keeps the tensors, no copy of them.
class ShardPacker {
 public:
  ShardPacker(const HeldShard& held, const std::string& note, NamedTensors tensors);

  const HeldShard& held() const { return held_; }
  std::int64_t bytes() const { return held_.bytes; }
  /// Fills `memory` (bytes(),) u8, at 64 bytes: one pass over the tensors, which hashes each piece while it is in the
  /// cache.
  void pack(const at::Tensor& memory) const;
  /// Into new memory.
  at::Tensor pack() const;

 private:
  HeldShard held_;
  NamedTensors tensors_;
  std::string head_;
  std::int64_t begin_ = 0;  // of the first tensor
};

}  // namespace troupe
