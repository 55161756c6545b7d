#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace troupe::test {

/// A device that is none, in LibTorch's registry as its PrivateUse1: streams and events without work, whose every call
/// is written down, and which a test can make wait. It shows what is asked of a device in which order, without one; it
/// does not show what a device would do.
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
  /// Those of the calling thread: the device of the rank that it is of.
  static void fail_here();
  /// `e1 marks s3`, `s5 waits for e1`, in order. s0 is the default stream; streams of high priority are s100 and up.
  static std::vector<std::string> calls();
  /// The calls so far.
  static void forget();
  /// The calling thread's current stream is busy for so long after what it holds. Streams have clocks of their own,
  /// which only this and `copies_take` move on; one that waits for an event is past its mark then. An event's time is
  /// its stream's.
  static void work(double ms);
  /// Each copy from now on, on streams that are numbered `from` and up (those of high priority: 100).
  static void copies_take(double ms, std::int64_t from);
  /// The sum of what copies have taken on streams from `from` and up.
  static double copying_ms(std::int64_t from);
  static void note_copy();
  /// The calling thread has made it its current device, as one of CUDA has to.
  static bool is_chosen_here();
  /// How often a value was read with item(), which waits for a device.
  static int items();
  static void note_item();
  /// Bytes of its memory that tensors hold now. What the test's NCCL gave is not counted.
  static std::int64_t bytes();
  static void note_bytes(std::int64_t change);
  /// The most since `reset`.
  static std::int64_t most_bytes();
  /// From now on there are `bytes` of it. What tensors give back is kept for tensors, as by LibTorch's allocator, until
  /// that empties its cache; others than LibTorch find what is left beside both. `reset` takes the limit away.
  static void limit_memory(std::int64_t bytes);
  /// For another than LibTorch (NCCL): whether there was room. Taken until it is given back with a negative number.
  static bool take_beside(std::int64_t bytes);
  /// The most that take_beside has given out at once.
  static std::int64_t most_beside();
  static void empty_cache();
  /// From now on accesses of copies, which all operators are made of here, are held against the order that events give
  /// the streams, as PyTorch's torch.cuda._sanitizer does. For one rank in the process: the default stream is one,
  /// whoever uses it.
  static void look_for_races();
  /// `s3 writes what s0 reads`: two streams at the same memory, and no event between them. Each pair of kinds once.
  static std::vector<std::string> races();
  static void note_access(const void* data, std::size_t bytes, bool writes);
  /// The memory is another's from now on.
  static void forget_memory(const void* data, std::size_t bytes);
  /// The next allocation of so many bytes or more, in a stream that is numbered `from` or up, finds no memory, and says
  /// so as LibTorch's own allocators do.
  static void fail_allocation(std::int64_t bytes, std::int64_t from = 0);
  /// Throws c10::OutOfMemoryError where it is that one.
  static void note_allocation(std::int64_t bytes);
  /// (numel,) on this device, zeros.
  static at::Tensor tensor(std::int64_t numel, at::ScalarType dtype);
};

}  // namespace troupe::test
