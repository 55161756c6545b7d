// Which memory a whole gradient is reduced in: the same on all ranks, whatever each of them has done before.
#include "strategies/sharded/gradient_ring.hpp"

#include "tests/catch.hpp"
#include "tests/support/fake_device.hpp"
#include "tests/support/thread_nccl.hpp"

using namespace troupe;
using troupe::test::FakeDevice;

namespace {

struct RingOnDevice {
  std::shared_ptr<Communicator> communicator;
  GradientRing ring;
  const void* of_turn[2] = {};

  RingOnDevice() : communicator(make()), ring(*communicator, 8, at::kFloat) {
    for (int turn = 0; turn < 2; ++turn) of_turn[turn] = ring.take(turn, 8, false).data_ptr();
    ring.reset();
  }
  static std::shared_ptr<Communicator> make() {
    FakeDevice::reset();
    CommunicatorOptions options;
    options.device = FakeDevice::device();
    options.nccl = std::make_shared<troupe::test::ThreadNccl>();
    return make_communicator(options);
  }
  // As the reducer does it.
  at::Tensor reduce(const at::Tensor& buffer) {
    auto there = ring.in_turn(buffer);
    ring.give_back(buffer);
    return there;
  }
};

}  // namespace

TEST_CASE("[L03] [F01] the memory of a turn is the same, whenever the reducer gives back") {
  RingOnDevice early, late;
  for (int turn = 0; turn < 6; ++turn) {
    const auto buffer = early.ring.take(turn, 8, true);
    CHECK(buffer.data_ptr() == early.of_turn[turn % 2]);
    early.ring.hand_over(buffer);
    CHECK(early.reduce(buffer).data_ptr() == early.of_turn[turn % 2]);
  }
  std::optional<at::Tensor> before;
  for (int turn = 0; turn < 6; ++turn) {  // one behind
    const auto buffer = late.ring.take(turn, 8, true);
    CHECK(buffer.data_ptr() == late.of_turn[turn % 2]);
    late.ring.hand_over(buffer);
    if (before) late.reduce(*before);
    before = buffer;
  }
}

TEST_CASE("[L03] [F01] a gradient that comes before its turn is reduced in the memory of its turn") {
  RingOnDevice on;
  const auto third = on.ring.take(2, 8, false), fifth = on.ring.take(4, 3, false);  // before 0 and 1
  const auto first = on.ring.take(0, 8, false), second = on.ring.take(1, 8, false);
  CHECK(first.data_ptr() == on.of_turn[0]);
  CHECK(second.data_ptr() == on.of_turn[1]);
  CHECK(third.data_ptr() != first.data_ptr());
  CHECK(on.ring.bytes() == 4 * 8 * 4);
  third.fill_(3);
  fifth.fill_(5);
  for (const auto& buffer : {first, second, third, fifth}) on.ring.hand_over(buffer);
  on.reduce(first);
  on.reduce(second);
  const auto fourth = on.ring.take(3, 8, true);
  CHECK(fourth.data_ptr() == on.of_turn[1]);
  const auto there = on.reduce(third);
  CHECK(there.data_ptr() == on.of_turn[0]);
  CHECK(at::equal(there.cpu(), at::full({8}, 3.0F)));
  on.ring.hand_over(fourth);
  on.reduce(fourth);
  const auto last = on.reduce(fifth);
  CHECK(last.data_ptr() == on.of_turn[0]);
  CHECK(at::equal(last.cpu(), at::full({3}, 5.0F)));
  CHECK(on.ring.take(6, 8, true).data_ptr() == on.of_turn[0]);
}
