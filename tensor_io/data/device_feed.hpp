#pragma once
#include <memory>

#include "tensor_io/data/dataset.hpp"
#include "tensor_io/device/device_stream.hpp"

namespace troupe {

/// Batches onto the device while the step before still runs. The loader's threads send, up to `prefetch` ahead, on a
/// separate stream of copies; the consumer's stream waits for the copy, the host never. The copies are from pinned
/// memory: from other memory the driver copies through its own buffer while the caller waits. The number of each sample
/// (Batch::index) stays on the host.
class DeviceFeed {
 public:
  explicit DeviceFeed(c10::Device device);

  /// The batch, with its fields on the device after the mark `arrived`. Any thread.
  Batch send(Batch batch) const;
  /// Makes the calling thread's current stream wait for a batch that was sent; it may be used there and dropped any
  /// time. Nothing to do for one that was not sent.
  static void receive(const Batch& batch);

 private:
  c10::Device device_;
  DeviceStream copies_;
};

}  // namespace troupe
