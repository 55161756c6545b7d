#pragma once
#include <ATen/core/Generator.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "tensor_io/layers/dropout.hpp"

namespace troupe {

/// A record of the state that a module's forward depends on besides its arguments and parameters, so that a second run
/// computes the same bits. This is LibTorch's generators of the CPU and of the device, the draws of
/// troupe::nn::Dropout, autocast, and the buffers that forward changes (BatchNorm's running statistics, which a second
/// run must not move again). The second run may be on another thread, as autograd's of a device is. Nothing in it waits
/// for the device.
class ForwardReplay {
  struct Autocast {
    c10::DeviceType device;
    bool enabled;
    at::ScalarType dtype;
  };

 public:
  /// Around the first run, whose tensors are on `device`. Keeps a copy of a generator's state (5 KB; 16 bytes of a
  /// GPU's) and of buffers only if the run changed them. A device's buffers can't be compared without a wait. So of
  /// these it keeps each that autograd counts as changed, and any of up to one dimension, since BatchNorm's operators
  /// change theirs uncounted.
  class Recording {
   public:
    Recording(ForwardReplay& replay, torch::nn::Module& module, c10::Device device);
    ~Recording();
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

   private:
    ForwardReplay& replay_;
    DropoutDraws::Recording draws_;
  };

  /// Around a second run: brings all of it back, and at its end the state from before. Throws nothing.
  class Replaying {
   public:
    explicit Replaying(ForwardReplay& replay);
    ~Replaying();
    Replaying(const Replaying&) = delete;
    Replaying& operator=(const Replaying&) = delete;

   private:
    ForwardReplay& replay_;
    DropoutDraws::Replaying draws_;
    std::vector<std::pair<at::Generator, at::Tensor>> generators_before_;
    std::vector<at::Tensor> buffers_now_;
    std::vector<Autocast> autocast_before_;
    bool cache_before_;
  };

 private:
  struct Buffer {
    at::Tensor live, before;    // `before`: its value before the run
    std::uint32_t version = 0;  // autograd's count of its changes, before the run
  };
  static Autocast autocast_of(c10::DeviceType device);
  static void set_autocast(const Autocast& autocast);
  static bool may_have_changed(const Buffer& buffer);

  std::vector<std::pair<at::Generator, at::Tensor>> generators_;  // (one that the run drew from, its state before)
  DropoutDraws draws_;
  std::vector<Buffer> buffers_;
  std::vector<Autocast> autocast_;  // of the CPU, and of the device
  bool cache_ = true;
};

}  // namespace troupe
