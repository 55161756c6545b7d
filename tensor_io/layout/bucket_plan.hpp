#pragma once
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troupe {

/// The facts of one parameter that all ranks must agree on.
struct ParameterLayout {
  std::string name;
  std::vector<std::int64_t> shape;
  at::ScalarType dtype = at::kFloat;
  bool requires_grad = true;

  std::int64_t numel() const noexcept;
  std::string describe() const;  ///< `fc.weight (10, 256) float32`
};

/// The place of one parameter's gradient in its dtype's flat buffer.
struct BucketSlot {
  std::int32_t parameter = 0;  ///< index into the layout
  std::int64_t offset = 0;     ///< elements from the start of the flat buffer; the address is a multiple of 64 bytes
  std::int64_t numel = 0;
};

/// Gradients that travel together: the elements [begin, end) of one dtype's flat buffer.
struct Bucket {
  at::ScalarType dtype = at::kFloat;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::vector<BucketSlot> slots;  // in the order of the plan

  std::int64_t numel() const noexcept { return end - begin; }
};

struct FlatBuffer {
  bool operator==(const FlatBuffer&) const = default;
  at::ScalarType dtype = at::kFloat;
  std::int64_t numel = 0;
};

/// The cut of gradients into buckets, in the order in which the reducer launches them.
///
/// Parameters that do not require a gradient have no slot. Every slot starts at 64 bytes: summation order, and so the
/// bits of the result, depends on the place. Hence the flat buffers have the same length for every order, and a new
/// plan needs no new memory.
struct BucketPlan {
  std::vector<Bucket> buckets;
  std::vector<FlatBuffer> flats;    // one per dtype
  std::vector<std::int32_t> order;  // the parameters in the order that the plan was made from
  std::uint64_t hash = 0;           // equal plans of equal layouts have equal hashes

  std::string describe() const;  ///< `12 parameters in 3 buckets: 1.0, 25.1, 7.9 MiB`
};

/// `order`: parameters in the order in which their gradients become ready; trainable ones missing in it come last. The
/// parameter that fills a bucket closes it (as in PyTorch's DDP), the first one at `first_cap_bytes`.
BucketPlan plan_buckets(std::span<const ParameterLayout> layout, std::span<const std::int32_t> order,
                        std::int64_t cap_bytes, std::int64_t first_cap_bytes);

/// The order before any measurement: last registered parameter first, since backward goes backwards.
std::vector<std::int32_t> registration_order(std::span<const ParameterLayout> layout);

/// An order as text, for messages and checkpoints, and back: `3 2 0 1`. Throws Error(bad_data) for any other text.
std::string order_text(std::span<const std::int32_t> order);
std::vector<std::int32_t> order_of_text(const std::string& text);

std::uint64_t layout_hash(std::span<const ParameterLayout> layout) noexcept;

/// One line per parameter, by its describe(), for the exchange between ranks.
std::string layout_text(std::span<const ParameterLayout> layout);
/// The difference between two ranks' layout_text, or an empty string: `parameter 3 is fc.weight (10, 256) float32 on
/// rank 0 and …`.
std::string layout_difference(const std::string& mine, int my_rank, const std::string& theirs, int their_rank);

}  // namespace troupe
