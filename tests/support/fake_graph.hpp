#pragma once
#include <ATen/core/stack.h>

#include <functional>
#include <vector>

#include "tensor_io/device/device_graph.hpp"

namespace c10 {
class OperatorHandle;
}

namespace troupe::test {

/// The fake device's graphs: a list of what is to be done again. While one is written down nothing is done, as on a
/// GPU: operators get zeros in the place of their arguments, for the shapes of what they return, and that holds NaN
/// until the first replay. What CUDA refuses then (a value that is read, a copy from the host, an event of another
/// stream) throws here, too.
class FakeGraph final : public DeviceGraph {
 public:
  /// Of the calling thread's current stream, unless an operator is at work for it; nullptr: none.
  static FakeGraph* under_way();
  /// While it lives, copies on this thread are an operator's own.
  class AtWork {
   public:
    AtWork();
    ~AtWork();
    AtWork(const AtWork&) = delete;
    AtWork& operator=(const AtWork&) = delete;

   private:
    bool before_;
  };
  /// Throws what CUDA says of something that can't be written down.
  static void refuse(const char* what);

  /// `op` by LibTorch's fallback, arguments and results on `stack`.
  void write(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void add(std::function<void()> work) { work_.push_back(std::move(work)); }

  void begin() override { work_.clear(); }
  void end() override {}
  void give_up() noexcept override { work_.clear(); }
  void mark(DeviceEvent& event) override;
  void replay() override;
  void run_on_host(std::function<void()> kernel) override { add(std::move(kernel)); }

  /// Replays of all graphs so far.
  static int replays();

 private:
  std::vector<std::function<void()>> work_;
};

}  // namespace troupe::test
