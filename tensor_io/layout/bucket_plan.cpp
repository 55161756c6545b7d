#include "tensor_io/layout/bucket_plan.hpp"

#include <algorithm>
#include <cstdio>
#include <map>
#include <sstream>

#include "tensor_io/base/mix_seed.hpp"
#include "tensor_io/files/xxh3.hpp"
#include "tensor_io/layout/state_texts.hpp"

namespace troupe {
namespace {

constexpr std::int64_t kCacheLine = 64;

std::int64_t padded(std::int64_t numel, std::int64_t element_bytes) {
  const std::int64_t per_line = kCacheLine / element_bytes;
  return (numel + per_line - 1) / per_line * per_line;
}

struct OpenBucket {
  Bucket bucket;
  std::size_t last_position = 0;
};

}  // namespace

std::int64_t ParameterLayout::numel() const noexcept {
  std::int64_t n = 1;
  for (const auto extent : shape) n *= extent;
  return n;
}

std::string ParameterLayout::describe() const {
  std::string text = name + " (";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  text += std::string(") ") + c10::toString(dtype);
  if (!requires_grad) text += " frozen";
  return text;
}

std::vector<std::int32_t> registration_order(std::span<const ParameterLayout> layout) {
  std::vector<std::int32_t> order;
  for (auto i = static_cast<std::int32_t>(layout.size()); i-- > 0;) {
    if (layout[static_cast<std::size_t>(i)].requires_grad) order.push_back(i);
  }
  return order;
}

BucketPlan plan_buckets(std::span<const ParameterLayout> layout, std::span<const std::int32_t> order,
                        std::int64_t cap_bytes, std::int64_t first_cap_bytes) {
  BucketPlan plan;
  std::vector<bool> placed(layout.size(), false);
  for (const auto index : order) {
    const auto i = static_cast<std::size_t>(index);
    if (i >= layout.size() || placed[i] || !layout[i].requires_grad) continue;
    placed[i] = true;
    plan.order.push_back(index);
  }
  for (const auto index : registration_order(layout)) {
    if (!placed[static_cast<std::size_t>(index)]) plan.order.push_back(index);
  }

  std::map<at::ScalarType, OpenBucket> open;
  std::vector<OpenBucket> closed;
  for (std::size_t position = 0; position < plan.order.size(); ++position) {
    const auto& parameter = layout[static_cast<std::size_t>(plan.order[position])];
    auto& current = open[parameter.dtype];
    current.bucket.dtype = parameter.dtype;
    current.bucket.slots.push_back({plan.order[position], 0, parameter.numel()});
    current.last_position = position;
    const auto element_bytes = static_cast<std::int64_t>(c10::elementSize(parameter.dtype));
    current.bucket.end += padded(parameter.numel(), element_bytes);  // its length for now; placed below
    if (current.bucket.end * element_bytes >= (closed.empty() ? first_cap_bytes : cap_bytes)) {
      closed.push_back(std::move(current));
      open.erase(parameter.dtype);
    }
  }
  for (auto& [dtype, rest] : open) closed.push_back(std::move(rest));
  // A bucket is full when its last parameter is ready.
  std::stable_sort(closed.begin(), closed.end(),
                   [](const auto& a, const auto& b) { return a.last_position < b.last_position; });

  std::map<at::ScalarType, std::int64_t> length;
  plan.hash = layout_hash(layout);
  for (auto& [bucket, position] : closed) {
    auto& offset = length[bucket.dtype];
    bucket.begin = offset;
    for (auto& slot : bucket.slots) {
      slot.offset = offset;
      offset += padded(slot.numel, static_cast<std::int64_t>(c10::elementSize(bucket.dtype)));
      plan.hash = mix_seed(plan.hash, {static_cast<std::uint64_t>(slot.parameter)});
    }
    bucket.end = offset;
    plan.hash = mix_seed(plan.hash, {static_cast<std::uint64_t>(bucket.end)});
    plan.buckets.push_back(std::move(bucket));
  }
  for (const auto& [dtype, numel] : length) plan.flats.push_back({dtype, numel});
  return plan;
}

std::string BucketPlan::describe() const {
  std::string text = std::to_string(order.size()) + " parameters in " + std::to_string(buckets.size()) + " bucket" +
                     (buckets.size() == 1 ? "" : "s");
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    char size[32];
    std::snprintf(
        size, sizeof size, "%.1f",
        static_cast<double>(buckets[i].numel()) * static_cast<double>(c10::elementSize(buckets[i].dtype)) / (1 << 20));
    text += (i == 0 ? ": " : ", ") + std::string(size);
  }
  return text + (buckets.empty() ? "" : " MiB");
}

std::string order_text(std::span<const std::int32_t> order) {
  std::string text;
  for (const auto index : order) text += (text.empty() ? "" : " ") + std::to_string(index);
  return text;
}

std::vector<std::int32_t> order_of_text(const std::string& text) {
  const auto numbers = *wholes_in({{"ddp.bucket_order", text}}, "ddp.bucket_order");
  return {numbers.begin(), numbers.end()};
}

std::uint64_t layout_hash(std::span<const ParameterLayout> layout) noexcept {
  std::uint64_t hash = 0;
  for (const auto& parameter : layout) {
    hash = mix_seed(hash, {xxh3(parameter.name), parameter.shape.size(),
                           static_cast<std::uint64_t>(parameter.dtype) * 2 + (parameter.requires_grad ? 1 : 0)});
    for (const auto extent : parameter.shape) hash = mix_seed(hash, {static_cast<std::uint64_t>(extent)});
  }
  return hash;
}

std::string layout_text(std::span<const ParameterLayout> layout) {
  std::string text;
  for (const auto& parameter : layout) text += parameter.describe() + "\n";
  return text;
}

std::string layout_difference(const std::string& mine, int my_rank, const std::string& theirs, int their_rank) {
  std::istringstream my_lines(mine), their_lines(theirs);
  std::string my_line, their_line;
  const auto side = [](const std::string& line, int rank) {
    return (line.empty() ? "does not exist" : "is " + line) + " on rank " + std::to_string(rank);
  };
  for (std::size_t i = 0; my_lines || their_lines; ++i) {
    if (!std::getline(my_lines, my_line)) my_line.clear();
    if (!std::getline(their_lines, their_line)) their_line.clear();
    if (my_line != their_line)
      return "parameter " + std::to_string(i) + " " + side(their_line, their_rank) + " and " + side(my_line, my_rank);
  }
  return {};
}

}  // namespace troupe
