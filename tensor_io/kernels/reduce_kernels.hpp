#pragma once
#include <cstddef>
#include <cstdint>

// No LibTorch here: the kernels are compiled once per instruction set. An inline function of a library that was
// compiled for AVX-512 must not end up in a program that runs elsewhere.
namespace troupe {

enum class Element : std::uint8_t { f32, f64, f16, bf16, i32, i64, u8, boolean };
enum class Reduction : std::uint8_t { sum, min, max, product };

/// outputs[*][i] = (inputs[0][i] op inputs[1][i] op ...) / divisor, always in this order, so all ranks compute the same
/// bits. f16 and bf16 are added in f32 and rounded once. On bool, sum is or and product is and. Integers wrap around;
/// min and max keep a NaN. An output may be an input at the same place, not at a shifted one.
struct ReduceTask {
  Element element = Element::f32;
  Reduction reduction = Reduction::sum;
  int divisor = 1;  ///< for averages; floating point only
  const void* const* inputs = nullptr;
  int input_count = 0;
  void* const* outputs = nullptr;
  int output_count = 0;
  std::int64_t numel = 0;
};

void reduce(const ReduceTask& task) noexcept;

/// Copies past the caches: for memory that another core read before. There ordinary stores wait for that core line by
/// line (2 against 10 GiB/s). Ends with the fence that such stores need before anything is announced. `ahead`: for each
/// byte copied, it also fetches the byte that lies this far behind it into the caches; 0: none. With the bytes of a
/// piece as `ahead`, a loop that copies pieces and works on each need not wait for the next. It never touches memory
/// behind the last byte, which may be foreign.
void copy_streaming(void* to, const void* from, std::size_t bytes, std::size_t ahead = 0) noexcept;

}  // namespace troupe
