#include "tensor_io/memory/tensor_memory.hpp"

#include <malloc.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tensor_io/memory/memory_shortage.hpp"
#include "tests/catch.hpp"

using namespace troupe;
using Catch::Matchers::Contains;

TEST_CASE("[T08] tensors from malloc are aligned, whatever their length") {
  take_tensors_from_malloc();
  for (const std::int64_t bytes : {1, 63, 64, 65, 4096, 1'000'003}) {
    const auto tensor = torch::empty({bytes}, at::kByte);
    CHECK((reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 64 == 0));
    CHECK((tensor.fill_(7).sum().item<std::int64_t>() == 7 * bytes));
  }
  CHECK((torch::empty({0}).data_ptr() == nullptr));
  auto grown = torch::arange(100);
  grown.resize_({10'000});
  CHECK((grown[99].item<std::int64_t>() == 99));
}

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose malloc is another
TEST_CASE("[T08] memory that cannot be had for a tensor is an error that says so") {
  take_tensors_from_malloc();
  CHECK_THROWS_WITH(torch::empty({std::int64_t{1} << 60}, at::kByte),
                    Contains("can't allocate memory: you tried to allocate 1152921504606846976"));
}

TEST_CASE("[L05] a tensor that no memory is left for is told of with the large ones that live") {
  take_tensors_from_malloc();
  const auto large = torch::empty({3 << 20}, at::kByte), small = torch::empty({1000}, at::kByte);
  (void)torch::empty({5 << 20}, at::kByte);  // is gone
  CHECK_THROWS_AS(torch::empty({std::int64_t{1} << 60}, at::kByte), c10::OutOfMemoryError);
  const auto shortage = last_shortage(c10::kCPU);
  REQUIRE(shortage);
  CHECK((shortage->requested == std::int64_t{1} << 60));
  const auto count = [&](std::int64_t bytes) {
    return std::count_if(shortage->blocks.begin(), shortage->blocks.end(),
                         [&](const LiveBlock& block) { return block.bytes == bytes; });
  };
  CHECK((count(3 << 20) == 1));
  CHECK((count(5 << 20) == 0));
  CHECK((count(1000) == 0));
  CHECK((shortage->allocated >= 3 << 20));
  CHECK((shortage->reserved > 0));
  CHECK((shortage->total > shortage->free));
}

TEST_CASE("[T08] a heap whose small blocks lie between tensors does not grow from step to step") {
  take_tensors_from_malloc();
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  constexpr std::int64_t kTensors = 8, kBytes = 4 << 20;
  std::vector<std::string> events;  // as a trace keeps them
  const auto step = [&] {
    std::vector<at::Tensor> tensors;
    for (std::int64_t i = 0; i < kTensors; ++i) {
      tensors.push_back(torch::empty({kBytes}, at::kByte));
      for (int event = 0; event < 20; ++event) events.emplace_back(100, 'e');
    }
  };
  for (int warm_up = 0; warm_up < 5; ++warm_up) step();
  const auto before = ::mallinfo2().arena;
  for (int i = 0; i < 30; ++i) step();
  CHECK((::mallinfo2().arena - before < std::size_t{2 * kBytes}));
}
#endif
