#include "tensor_io/pack.hpp"

#include <torch/torch.h>

#include <cstdint>
#include <cstring>

namespace troupe {
namespace {

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
// Chosen when the program starts, by the processor. Sanitizers run before the resolver may.
#define TROUPE_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TROUPE_CLONES
#endif

// A floating point number is finite unless all bits of its exponent are set. Branch-free over blocks, so that it vectorises.
TROUPE_CLONES std::uint32_t copy_bits32(std::uint32_t* __restrict to, const std::uint32_t* __restrict from, std::int64_t n,
                                        std::uint32_t exponent) {
  std::uint32_t bad = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t x = from[i];
    bad |= (x & exponent) == exponent ? 1u : 0u;
    to[i] = x;
  }
  return bad;
}
TROUPE_CLONES std::uint64_t copy_bits64(std::uint64_t* __restrict to, const std::uint64_t* __restrict from, std::int64_t n,
                                        std::uint64_t exponent) {
  std::uint64_t bad = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint64_t x = from[i];
    bad |= (x & exponent) == exponent ? 1u : 0u;
    to[i] = x;
  }
  return bad;
}
TROUPE_CLONES std::uint16_t copy_bits16(std::uint16_t* __restrict to, const std::uint16_t* __restrict from, std::int64_t n,
                                        std::uint16_t exponent) {
  std::uint16_t bad = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint16_t x = from[i];
    bad = static_cast<std::uint16_t>(bad | ((x & exponent) == exponent ? 1 : 0));
    to[i] = x;
  }
  return bad;
}
TROUPE_CLONES std::uint32_t check_bits32(const std::uint32_t* from, std::int64_t n, std::uint32_t exponent) {
  std::uint32_t bad = 0;
  for (std::int64_t i = 0; i < n; ++i) bad |= (from[i] & exponent) == exponent ? 1u : 0u;
  return bad;
}

bool same_dense_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         (a.strides() == b.strides() || (a.is_contiguous() && b.is_contiguous())) && a.is_non_overlapping_and_dense();
}

}  // namespace

bool all_finite(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat && tensor.is_non_overlapping_and_dense()) {
    return check_bits32(static_cast<const std::uint32_t*>(tensor.const_data_ptr()), tensor.numel(), 0x7f800000u) == 0;
  }
  return at::isfinite(tensor).all().item<bool>();
}

bool copy_and_check(const at::Tensor& destination, const at::Tensor& source) {
  if (same_dense_layout(destination, source)) {
    void* to = destination.data_ptr();
    const void* from = source.const_data_ptr();
    const auto n = source.numel();
    switch (source.scalar_type()) {
      case at::kFloat: return copy_bits32(static_cast<std::uint32_t*>(to), static_cast<const std::uint32_t*>(from), n, 0x7f800000u) == 0;
      case at::kDouble:
        return copy_bits64(static_cast<std::uint64_t*>(to), static_cast<const std::uint64_t*>(from), n, 0x7ff0000000000000ull) == 0;
      case at::kHalf: return copy_bits16(static_cast<std::uint16_t*>(to), static_cast<const std::uint16_t*>(from), n, 0x7c00u) == 0;
      case at::kBFloat16: return copy_bits16(static_cast<std::uint16_t*>(to), static_cast<const std::uint16_t*>(from), n, 0x7f80u) == 0;
      default: break;
    }
  }
  torch::NoGradGuard no_grad;
  destination.copy_(source);
  return all_finite(destination);
}

bool add_and_check(const at::Tensor& destination, const at::Tensor& source) {
  torch::NoGradGuard no_grad;
  destination.add_(source);
  return all_finite(destination);
}

}  // namespace troupe
