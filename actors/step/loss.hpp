#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "actors/step/correct_samples.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {

/// The loss of one micro-batch: its mean over the samples, or a sum over the elements that count.
struct Loss {
  Loss(at::Tensor mean) : value(std::move(mean)) {}  // NOLINT: a plain loss converts
  Loss(at::Tensor mean, CorrectSamples right) : value(std::move(mean)), correct(std::move(right)) {}

  /// For micro-batches of unequal numbers of elements (masked tokens, sequences of unequal lengths): `total` is the sum
  /// of the losses of `count` elements. Loss and gradient of the step are then means over the elements of all ranks and
  /// micro-batches, as on one rank that has them all. A step in which no element counts is skipped. A step's
  /// micro-batches are all sums, or all means. Throws Error(usage) for a negative count.
  static Loss sum(at::Tensor total, std::int64_t count, CorrectSamples right = 0.0) {
    if (count < 0)
      throw Error(ErrorCode::usage, "Loss::sum", "the count is " + std::to_string(count),
                  "give the number of elements that the sum is over, 0 or more");
    Loss loss(std::move(total), std::move(right));
    loss.elements = count;
    return loss;
  }

  at::Tensor value;                      ///< scalar
  CorrectSamples correct;                ///< samples that were right, for the accuracy; 0 if the program counts none
  std::optional<std::int64_t> elements;  ///< the elements in the sum `value`; empty: it is a mean over samples
};

}  // namespace troupe
