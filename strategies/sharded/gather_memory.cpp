#include "strategies/sharded/gather_memory.hpp"

#include <ATen/ops/empty.h>

namespace troupe {

GatherMemory::Piece GatherMemory::take(std::int64_t numel, const at::TensorOptions& options) {
  Piece piece;
  if (auto kept = pool_.extract({numel, options.dtype().toScalarType()}); !kept.empty()) {
    piece = std::move(kept.mapped());
  } else {
    const CurrentStream place(stream_);
    piece = {at::empty({numel}, options), std::make_unique<DeviceEvent>(stream_.device())};
  }
  in_use_ += static_cast<std::int64_t>(piece.tensor.nbytes());
  return piece;
}

void GatherMemory::give_back(Piece piece, const DeviceStream& user) {
  piece.free->record(user);
  in_use_ -= static_cast<std::int64_t>(piece.tensor.nbytes());
  const std::pair key(piece.tensor.numel(), piece.tensor.scalar_type());
  pool_.emplace(key, std::move(piece));
}

std::int64_t GatherMemory::bytes() const {
  std::int64_t bytes = in_use_;
  for (const auto& [key, piece] : pool_) bytes += static_cast<std::int64_t>(piece.tensor.nbytes());
  return bytes;
}

}  // namespace troupe
