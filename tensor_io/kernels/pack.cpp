#include "tensor_io/kernels/pack.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>

#include <cstdint>

#include "tensor_io/base/processor_clones.hpp"

namespace troupe {
namespace {

/// A floating point number is finite unless all bits of its exponent are set: then adding the exponent's lowest bit
/// carries into the sign. And, add and or are what every vector unit has at every width, so the check costs nothing
/// beside the memory traffic.
template <class Bits>
struct Format {
  Bits exponent, lowest;
  constexpr explicit Format(Bits mask) : exponent(mask), lowest(static_cast<Bits>(mask & (~mask + 1))) {}
  Bits carry(Bits x) const { return static_cast<Bits>((x & exponent) + lowest); }
  static bool is_finite(Bits carries) { return carries >> (8 * sizeof(Bits) - 1) == 0; }
};
constexpr Format<std::uint16_t> kHalf{0x7c00}, kBFloat16{0x7f80};
constexpr Format<std::uint32_t> kFloat{0x7f800000};
constexpr Format<std::uint64_t> kDouble{0x7ff0000000000000};

template <class Bits>
inline __attribute__((always_inline)) bool copy_bits(Bits* __restrict to, const Bits* __restrict from, std::int64_t n,
                                                     Format<Bits> format) {
  Bits carries = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const Bits x = from[i];
    carries |= format.carry(x);
    to[i] = x;
  }
  return format.is_finite(carries);
}

template <class Bits>
inline __attribute__((always_inline)) bool check_bits(const Bits* from, std::int64_t n, Format<Bits> format) {
  Bits carries = 0;
  for (std::int64_t i = 0; i < n; ++i) carries |= format.carry(from[i]);
  return format.is_finite(carries);
}

TROUPE_PROCESSOR_CLONES bool copy16(std::uint16_t* to, const std::uint16_t* from, std::int64_t n,
                                    Format<std::uint16_t> f) {
  return copy_bits(to, from, n, f);
}
TROUPE_PROCESSOR_CLONES bool copy32(std::uint32_t* to, const std::uint32_t* from, std::int64_t n,
                                    Format<std::uint32_t> f) {
  return copy_bits(to, from, n, f);
}
TROUPE_PROCESSOR_CLONES bool copy64(std::uint64_t* to, const std::uint64_t* from, std::int64_t n,
                                    Format<std::uint64_t> f) {
  return copy_bits(to, from, n, f);
}
TROUPE_PROCESSOR_CLONES bool check16(const std::uint16_t* from, std::int64_t n, Format<std::uint16_t> f) {
  return check_bits(from, n, f);
}
TROUPE_PROCESSOR_CLONES bool check32(const std::uint32_t* from, std::int64_t n, Format<std::uint32_t> f) {
  return check_bits(from, n, f);
}
TROUPE_PROCESSOR_CLONES bool check64(const std::uint64_t* from, std::int64_t n, Format<std::uint64_t> f) {
  return check_bits(from, n, f);
}

TROUPE_PROCESSOR_CLONES bool add32(float* __restrict to, const float* __restrict from, std::int64_t n) {
  std::uint32_t carries = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const float sum = to[i] + from[i];
    carries |= kFloat.carry(__builtin_bit_cast(std::uint32_t, sum));
    to[i] = sum;
  }
  return kFloat.is_finite(carries);
}

bool same_dense_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         (a.strides() == b.strides() || (a.is_contiguous() && b.is_contiguous())) && a.is_non_overlapping_and_dense();
}

}  // namespace

bool all_finite(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) {
    const void* from = tensor.const_data_ptr();
    const auto n = tensor.numel();
    switch (tensor.scalar_type()) {
      case at::kFloat: return check32(static_cast<const std::uint32_t*>(from), n, kFloat);
      case at::kDouble: return check64(static_cast<const std::uint64_t*>(from), n, kDouble);
      case at::kHalf: return check16(static_cast<const std::uint16_t*>(from), n, kHalf);
      case at::kBFloat16: return check16(static_cast<const std::uint16_t*>(from), n, kBFloat16);
      default: break;
    }
  }
  return at::isfinite(tensor).all().item<bool>();
}

bool copy_and_check(const at::Tensor& destination, const at::Tensor& source) {
  if (same_dense_layout(destination, source)) {
    void* to = destination.data_ptr();
    const void* from = source.const_data_ptr();
    const auto n = source.numel();
    switch (source.scalar_type()) {
      case at::kFloat:
        return copy32(static_cast<std::uint32_t*>(to), static_cast<const std::uint32_t*>(from), n, kFloat);
      case at::kDouble:
        return copy64(static_cast<std::uint64_t*>(to), static_cast<const std::uint64_t*>(from), n, kDouble);
      case at::kHalf: return copy16(static_cast<std::uint16_t*>(to), static_cast<const std::uint16_t*>(from), n, kHalf);
      case at::kBFloat16:
        return copy16(static_cast<std::uint16_t*>(to), static_cast<const std::uint16_t*>(from), n, kBFloat16);
      default: break;
    }
  }
  at::NoGradGuard no_grad;
  destination.copy_(source);
  return all_finite(destination);
}

bool add_and_check(const at::Tensor& destination, const at::Tensor& source) {
  if (same_dense_layout(destination, source) && source.scalar_type() == at::kFloat) {
    return add32(static_cast<float*>(destination.data_ptr()), static_cast<const float*>(source.const_data_ptr()),
                 source.numel());
  }
  at::NoGradGuard no_grad;
  destination.add_(source);
  return all_finite(destination);
}

}  // namespace troupe
