#pragma once
#include <cstdint>
#include <functional>

#include "tensor_io/optimizer/optimizer_options.hpp"

namespace troupe {

/// A schedule by code: the factor of the rate in optimizer step `step` (from 0), of a run of `total_steps`; 0: its
/// length is not known. A pure function, since all ranks, and a resumed run, must get the same rate.
using LrSchedule = std::function<double(std::int64_t step, std::int64_t total_steps)>;

/// The learning rate of optimizer step `step` (from 0), as a pure function. It warms up linearly from 0 to lr at step
/// `warmup_steps`. After that it is constant, or cosine down to lr_min at step `total_steps`, the one after the last
/// (Loshchilov and Hutter, 2017), or lr_step_factor every lr_step_epochs. The rates are those of PyTorch's LinearLR
/// followed by CosineAnnealingLR or StepLR. Throws Error(usage) for an unknown schedule.
double scheduled_lr(const OptimizerOptions& options, std::int64_t step, std::int64_t steps_per_epoch,
                    std::int64_t total_steps);

}  // namespace troupe
