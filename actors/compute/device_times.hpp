#pragma once
#include <deque>
#include <vector>

#include "tensor_io/device/device_timer.hpp"

namespace troupe {

/// The times of a rank's steps on a device. On the CPU, StepReport and the vote take them from the host's clock. Here
/// the device's clock counts, since the host has launched a step long before it is over.
///
/// Points are marked while a step is launched, and read when they are over, without a wait: at once if the host has
/// waited for the step's end anyway, else at a later step. On the CPU nothing is marked, and there is nothing to take.
/// Compute's thread.
class DeviceTimes {
 public:
  enum class Part : unsigned char { forward, backward };
  using Waits = std::vector<TimedInterval>;

  /// Of a rank on this device from now on; earlier marks are forgotten.
  void reset(c10::Device device);
  /// A micro-batch is there.
  void begin_section();
  /// Its forward, or its backward, is launched; the next part begins. `waits`: when compute's stream waited for other
  /// ranks within.
  void end_section(Part part, const Waits& waits);
  /// The step's last backward is launched. From now on compute's stream only waits for the others.
  void end_backward();
  /// The reducer's collectives of this step, in their order, and the waits of compute's stream for its own collectives
  /// after them.
  void end_reduction(const std::vector<TimedInterval>& collectives, const Waits& waits);
  /// In ms; sums over the steps whose marks were over.
  struct Sums {
    std::int64_t steps = 0;
    double exposed =
        0;  ///< after backward compute's stream stood still: for the reducer's last collective, and for its own
    double reduce = 0;    ///< the reducer's collectives
    double inside = 0;    ///< compute's stream waited for other ranks within forward and backward
    double forward = 0;   ///< without that
    double backward = 0;  ///< without that
  };
  Sums take();

 private:
  enum class Kind : unsigned char { forward, backward, waits_of_forward, waits_of_backward, exposed, reduce };
  struct Entry {
    Kind kind;
    TimedInterval interval;
  };
  using Step = std::vector<Entry>;
  void drop_step();
  TimedMark now();
  static void add(const Step& step, Sums& sums);

  DeviceTimer timer_;
  c10::Device device_ = c10::kCPU;
  TimedMark since_, backward_ended_;
  Step step_;               // under way
  std::deque<Step> steps_;  // launched
};

}  // namespace troupe
