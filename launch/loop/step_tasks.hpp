#pragma once
#include <array>
#include <cstdint>
#include <functional>

#include "actors/compute/compute.hpp"

namespace troupe {

/// What all ranks do together between two steps, and after the last one, in this order, in every loop through a loader.
/// Where the loss of a rank interrupts one, all ranks do it again, the newcomer too, and those after it; those before
/// it are done. Compute's thread.
class StepTasks {
 public:
  enum Task : std::uint8_t {
    trace,       ///< gathering it
    program,     ///< the program's own work (Rank::between_steps)
    validation,  ///< of an epoch's end
    save,
    last_validation,
    last_save
  };
  explicit StepTasks(Compute& compute) : compute_(compute) {}
  void set(Task task, std::function<void()> work) { work_.at(task) = std::move(work); }
  /// Those from `first` to `last` that are due. Throws what they throw; then all ranks are to come here again.
  void run(Task first, Task last) {
    for (int task = first; task <= last; ++task) {
      if (!compute_.task_due(task)) continue;
      if (const auto& work = work_.at(static_cast<std::size_t>(task))) work();
      compute_.task_done(task);
    }
  }
  /// Up to `last` there is nothing to do before the first step.
  void pass(Task last) noexcept { compute_.task_done(last); }

 private:
  Compute& compute_;
  std::array<std::function<void()>, last_save + 1> work_;
};

}  // namespace troupe
