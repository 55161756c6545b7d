#pragma once
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tensor_io/layout/bucket_plan.hpp"

namespace troupe {

/// Parameters that are gathered, reduced and freed together.
struct UnitMembers {
  std::string name;
  std::vector<std::int32_t> parameters;  ///< indices into the layout
};

/// The place of one parameter in its flat parameter.
struct FlatSlot {
  std::int32_t parameter = 0;  ///< index into the layout
  std::int64_t offset = 0;     ///< elements from the start, a multiple of kFlatAlignment
  std::int64_t numel = 0;
};

/// The parameters of one unit that have one dtype and are all trained, or all frozen, laid end to end and cut into one
/// shard per rank.
struct FlatParameter {
  std::int32_t unit = 0;
  at::ScalarType dtype = at::kFloat;
  bool trainable = true;
  std::int64_t numel = 0;        ///< with padding: world_size * shard_numel
  std::int64_t shard_numel = 0;  ///< a multiple of kFlatAlignment
  std::vector<FlatSlot> slots;   ///< in layout order
};

/// Elements. Tensors and shards begin at 64 bytes in f32, f16, bf16 and f64 alike, so that one plan serves all dtypes
/// of a mixed precision.
inline constexpr std::int64_t kFlatAlignment = 32;

/// The cut of parameters over ranks: rank r holds the r-th shard of each flat parameter. A value, the same on all
/// ranks. Flat parameters are those of Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel",
/// VLDB 2023.
struct ShardPlan {
  int world_size = 1;
  std::vector<std::string> units;    ///< names
  std::vector<FlatParameter> flats;  ///< by unit; those of a unit follow each other
  std::uint64_t hash = 0;            ///< equal plans of equal layouts have equal hashes

  std::string describe() const;  ///< `12 parameters in 3 units, 4.1 MiB of 8.2 MiB on each rank`
};

/// Every parameter of the layout is in one unit, once; throws Error(internal) otherwise.
ShardPlan plan_shards(std::span<const ParameterLayout> layout, std::span<const UnitMembers> units, int world_size);

/// The elements [begin, begin + numel) of a parameter, in the order of memory, and their place in the rank's
/// shard.
struct ShardSlice {
  std::int32_t parameter = 0;
  std::int32_t flat = 0;
  std::int64_t begin = 0;
  std::int64_t numel = 0;
  std::int64_t offset = 0;  ///< from the start of the shard

  bool operator==(const ShardSlice&) const = default;
};

/// Rank `rank`'s slices, in the order of flats and slots. Parameters without elements on it are left out.
std::vector<ShardSlice> slices_of(const ShardPlan& plan, int rank);

}  // namespace troupe
