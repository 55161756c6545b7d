#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace troupe::test {

/// A device that is none, in LibTorch's registry as its PrivateUse1: streams and events without work, whose every call is written down, and
/// which a test can make wait. It shows what is asked of a device in which order, without one; it does not show what a device would do.
///
/// Its memory is the host's. Its one index is 0.
class FakeDevice {
 public:
  static c10::Device device() { return {c10::DeviceType::PrivateUse1, 0}; }
  /// Forgets the calls, and lets everything run.
  static void reset();
  /// Events that are recorded from now on are not over before `release`.
  static void hold();
  static void release();
  /// Every call on an event from now on throws, as on a device that has failed.
  static void fail();
  /// `e1 marks s3`, `s5 waits for e1`, in order. s0 is the default stream; streams of high priority are s100 and up.
  static std::vector<std::string> calls();
  /// The calls so far.
  static void forget();
  /// How often a value was read with item(), which waits for a device.
  static int items();
  static void note_item();
  /// Bytes of its memory that tensors hold now. What the test's NCCL gave is not counted.
  static std::int64_t bytes();
  static void note_bytes(std::int64_t change);
  /// From now on accesses of copies, which all operators are made of here, are held against the order that events give the streams, as
  /// PyTorch's torch.cuda._sanitizer does. For one rank in the process: the default stream is one, whoever uses it.
  static void look_for_races();
  /// `s3 writes what s0 reads`: two streams at the same memory, and no event between them. Each pair of kinds once.
  static std::vector<std::string> races();
  static void note_access(const void* data, std::size_t bytes, bool writes);
  /// The memory is another's from now on.
  static void forget_memory(const void* data, std::size_t bytes);
  /// (numel,) on this device, zeros.
  static at::Tensor tensor(std::int64_t numel, at::ScalarType dtype);
};

}  // namespace troupe::test
