#include "tensor_io/kernels/reduce_kernels.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tensor_io/base/instruction_set.hpp"
#include "tests/catch.hpp"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

using namespace troupe;

// The kernels of the lowest instruction set, which the chosen ones must agree with to the bit.
namespace troupe::kernels_generic {
void reduce(const ReduceTask& task) noexcept;
void copy_streaming(void* to, const void* from, std::size_t bytes, std::size_t ahead) noexcept;
}  // namespace troupe::kernels_generic

namespace {

std::size_t bytes_of(Element element) {
  switch (element) {
    case Element::f64:
    case Element::i64: return 8;
    case Element::f32:
    case Element::i32: return 4;
    case Element::f16:
    case Element::bf16: return 2;
    default: return 1;
  }
}

std::vector<unsigned char> noise(std::size_t bytes, std::uint32_t state) {
  std::vector<unsigned char> data(bytes);
  for (auto& byte : data) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<unsigned char>(state >> 24);
  }
  return data;
}

}  // namespace

TEST_CASE("every half-precision number survives widening and narrowing as c10 has it", "[kernels]") {
  const auto element = GENERATE(Element::f16, Element::bf16);
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  std::vector<std::uint16_t> one(all.size(), element == Element::f16 ? 0x3c00 : 0x3f80);  // 1
  std::vector<std::uint16_t> sums(all.size());
  const void* inputs[] = {all.data(), one.data()};
  void* outputs[] = {sums.data()};
  for (const auto reduction : {Reduction::product, Reduction::sum}) {
    for (const auto run : {&troupe::reduce, &kernels_generic::reduce}) {
      (*run)(ReduceTask{element, reduction, 1, inputs, 2, outputs, 1, static_cast<std::int64_t>(all.size())});
      int wrong = 0;
      for (std::size_t i = 0; i < all.size(); ++i) {
        const float wide = element == Element::f16
                               ? static_cast<float>(c10::Half(all[i], c10::Half::from_bits()))
                               : static_cast<float>(c10::BFloat16(all[i], c10::BFloat16::from_bits()));
        const float result = reduction == Reduction::sum ? wide + 1.0f : wide;
        const std::uint16_t expected = element == Element::f16 ? c10::Half(result).x : c10::BFloat16(result).x;
        if (std::isnan(wide)) {
          const auto exponent = element == Element::f16 ? 0x7c00 : 0x7f80;
          wrong += (sums[i] & exponent) != exponent || (sums[i] & (element == Element::f16 ? 0x3ff : 0x7f)) == 0;
        } else {
          wrong += sums[i] != expected;
        }
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("this machine's kernels compute the bits of the generic ones", "[kernels]") {
  INFO("instruction set " << static_cast<int>(instruction_set()));
  const auto element = GENERATE(Element::f32, Element::f64, Element::f16, Element::bf16, Element::i32, Element::i64,
                                Element::u8, Element::boolean);
  for (const auto reduction : {Reduction::sum, Reduction::min, Reduction::max, Reduction::product}) {
    for (const int inputs : {1, 2, 3, 8}) {
      for (const int divisor : {1, 2, 3}) {
        const std::int64_t numel = 2'501;
        const auto bytes = bytes_of(element) * numel;
        std::vector<std::vector<unsigned char>> data;
        std::vector<const void*> pointers;
        for (int i = 0; i < inputs; ++i)
          data.push_back(noise(bytes, 77u + i));  // all kinds of numbers: denormal, infinite, NaN
        for (const auto& one : data) pointers.push_back(one.data());
        std::vector<unsigned char> chosen(bytes), second(bytes), generic(bytes);
        void* two[] = {chosen.data(), second.data()};
        void* one[] = {generic.data()};
        ReduceTask task{element, reduction, divisor, pointers.data(), inputs, two, 2, numel};
        troupe::reduce(task);
        task.outputs = one;
        task.output_count = 1;
        kernels_generic::reduce(task);
        // a NaN may carry another payload
        int wrong = 0;
        for (std::int64_t i = 0; i < numel; ++i) {
          const auto at = i * bytes_of(element);
          bool same = std::memcmp(&chosen[at], &generic[at], bytes_of(element)) == 0;
          if (!same && element == Element::f32) {
            float a = 0, b = 0;
            std::memcpy(&a, &chosen[at], 4), std::memcpy(&b, &generic[at], 4);
            same = std::isnan(a) && std::isnan(b);
          }
          if (!same && element == Element::f64) {
            double a = 0, b = 0;
            std::memcpy(&a, &chosen[at], 8), std::memcpy(&b, &generic[at], 8);
            same = std::isnan(a) && std::isnan(b);
          }
          if (!same && element == Element::f16) {
            std::uint16_t a = 0, b = 0;
            std::memcpy(&a, &chosen[at], 2), std::memcpy(&b, &generic[at], 2);
            same = (a & 0x7fff) > 0x7c00 && (b & 0x7fff) > 0x7c00;
          }
          wrong += !same;
        }
        CHECK(wrong == 0);
        CHECK((chosen == second));
      }
    }
  }
}

TEST_CASE("an average is the sum divided, to the last bit", "[kernels]") {
  for (const int world : {2, 3, 4, 7}) {
    std::vector<std::vector<float>> data(world, std::vector<float>(1'000));
    std::vector<const void*> inputs;
    for (int r = 0; r < world; ++r) {
      for (int i = 0; i < 1'000; ++i) data[r][i] = std::sin(static_cast<float>(i * (r + 1)));
      inputs.push_back(data[r].data());
    }
    std::vector<float> average(1'000);
    void* outputs[] = {average.data()};
    troupe::reduce(ReduceTask{Element::f32, Reduction::sum, world, inputs.data(), world, outputs, 1, 1'000});
    int wrong = 0;
    for (int i = 0; i < 1'000; ++i) {
      float sum = data[0][i];
      for (int r = 1; r < world; ++r) sum += data[r][i];
      wrong += average[i] != sum / static_cast<float>(world);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("a streaming copy copies every byte, at every alignment, and no more", "[kernels]") {
  const auto from = noise(5'000, 3);
  for (const auto run : {&troupe::copy_streaming, &kernels_generic::copy_streaming}) {
    for (const std::size_t offset : {0, 1, 13, 63}) {
      for (const std::size_t length : {0, 1, 15, 64, 100, 1'000, 4'097}) {
        std::vector<unsigned char> to(5'000, 0xee);
        // What is fetched ahead may lie behind the end, and be nobody's.
        const std::size_t ahead = length % 2 == 0 ? 0 : std::size_t{1} << 40;
        (*run)(to.data() + offset, from.data() + 7, length, ahead);
        CHECK(std::memcmp(to.data() + offset, from.data() + 7, length) == 0);
        CHECK(to[offset + length] == 0xee);
        if (offset > 0) CHECK(to[offset - 1] == 0xee);
      }
    }
  }
}
