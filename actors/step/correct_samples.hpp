#pragma once
#include <ATen/core/Tensor.h>

#include <utility>

#include "tensor_io/base/error.hpp"

namespace troupe {

/// The number of samples of a micro-batch that the model got right, for the accuracy in reports: a number, or a tensor
/// of one element. A tensor on a device is read with the losses, at the step's vote, so that nothing waits for it
/// before. 0 if the program counts none.
class CorrectSamples {
 public:
  CorrectSamples(double count = 0) : count_(count) {}  // NOLINT: a plain number converts
  CorrectSamples(const at::Tensor& count) {            // and so does the model's tensor
    if (count.numel() != 1) {
      throw Error(ErrorCode::usage, "correct", "the tensor has " + std::to_string(count.numel()) + " elements",
                  "give the number of correct samples: scores.argmax(1).eq(target).sum()");
    }
    if (count.is_cpu()) {
      count_ = count.item<double>();
    } else {
      there_ = count.detach();
    }
  }
  /// On a device and not read yet; undefined: `value` costs nothing.
  const at::Tensor& on_device() const noexcept { return there_; }
  /// Waits for the device, if it is there.
  double value() const { return there_.defined() ? there_.item<double>() : count_; }

 private:
  double count_ = 0;
  at::Tensor there_;
};

}  // namespace troupe
