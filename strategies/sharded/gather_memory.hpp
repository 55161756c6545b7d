#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "tensor_io/device/device_stream.hpp"

namespace troupe {

/// Memory for whole flat parameters: that of one unit serves the next one of the same size. The owner's lock guards it.
class GatherMemory {
 public:
  struct Piece {
    at::Tensor tensor;                  ///< (numel,)
    std::unique_ptr<DeviceEvent> free;  ///< after it the previous content is not used any more
  };

  /// `stream`: that of the gathers, for which memory is allocated. It lives longer.
  explicit GatherMemory(const DeviceStream& stream) : stream_(stream) {}

  Piece take(std::int64_t numel, const at::TensorOptions& options);
  /// `user`: the last stream that used it.
  void give_back(Piece piece, const DeviceStream& user);

  /// Of pieces that were taken, and of all that there are.
  std::int64_t bytes_in_use() const noexcept { return in_use_; }
  std::int64_t bytes() const;

 private:
  const DeviceStream& stream_;
  std::multimap<std::pair<std::int64_t, at::ScalarType>, Piece> pool_;
  std::int64_t in_use_ = 0;
};

}  // namespace troupe
