#include "tensor_io/memory/memory_shortage.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "tests/catch.hpp"

using namespace troupe;

TEST_CASE(
    "[L05] a shortage of memory is told in one line: what was asked for, what there is, the five largest allocations") {
  MemoryShortage shortage;
  shortage.device = {c10::kCUDA, 1};
  shortage.requested = 3LL << 29;
  shortage.free = 640LL << 20;
  shortage.total = 80LL << 30;
  shortage.allocated = 70LL << 30;
  shortage.reserved = 79LL << 30;
  CHECK(describe(shortage) ==
        "1.50 GiB asked for on cuda:1, which has 640 MiB free of 80.00 GiB; this process's tensors take 70.00 GiB of "
        "the 79.00 GiB that it "
        "holds");
  // Equal ones of a stream are one; the rest is a sum.
  shortage.blocks = {{1LL << 30, 0}, {2LL << 30, 3}, {1LL << 30, 0}, {1LL << 30, 2}, {17, 0},
                     {500 << 20, 0}, {400 << 20, 0}, {300 << 20, 0}, {0, 0}};
  CHECK_THAT(describe(shortage), Catch::EndsWith("; the largest: 2.00 GiB (stream 3), 2 x 1.00 GiB, 1.00 GiB (stream "
                                                 "2), 500 MiB, 400 MiB, and 2 smaller ones of "
                                                 "300 MiB"));
  shortage = MemoryShortage();
  CHECK(describe(shortage) == "no more on the host");
  shortage.requested = 2048;
  shortage.allocated = 5;
  shortage.reserved = 1 << 20;
  shortage.limit = 1 << 30;
  CHECK(describe(shortage) ==
        "2.00 KiB asked for on the host; this process may have 1.00 GiB of addresses (ulimit -v); this process's large "
        "tensors take 5 bytes, "
        "all of it 1.00 MiB");
}

TEST_CASE("[L05] what Troupe holds is told by name, the largest first") {
  CHECK(describe(std::vector<HeldMemory>{}).empty());
  CHECK(describe(std::vector<HeldMemory>{{"gathered units", 0}}).empty());
  CHECK(describe(std::vector<HeldMemory>{{"parameters", 2 << 20}, {"buffers", 0}, {"optimizer state", 4 << 20}}) ==
        "Troupe holds: optimizer state 4.00 MiB, parameters 2.00 MiB");
}

TEST_CASE("[L05] memory that several tensors lie in counts once") {
  const auto flat = at::zeros({100}, at::kFloat), other = at::zeros({10}, at::kFloat);
  const std::vector<at::Tensor> tensors{flat.narrow(0, 0, 10), flat.narrow(0, 50, 50), other, at::Tensor()};
  CHECK(bytes_on(c10::kCPU, tensors) == 440);
  CHECK(bytes_on({c10::kCUDA, 0}, tensors) == 0);
}

TEST_CASE("[L05] of a device's shortage and the host's the later one is told") {
  MemoryShortage device, host;
  device.device = {c10::kCUDA, 5};
  device.requested = 1;
  host.requested = 2;
  note_shortage(device);
  CHECK(last_shortage(device.device)->requested == 1);
  note_shortage(host);
  CHECK(last_shortage(device.device)->requested == 2);
  note_shortage(device);
  CHECK(last_shortage(device.device)->requested == 1);
  CHECK(last_shortage({c10::kCUDA, 6})->requested == 2);
}
