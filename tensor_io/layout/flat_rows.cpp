#include "tensor_io/layout/flat_rows.hpp"

#include <ATen/ops/cat.h>

#include <utility>

namespace troupe {

FlatRows::FlatRows(std::vector<std::int64_t> sizes, std::vector<std::int64_t> strides)
    : sizes_(std::move(sizes)), strides_(std::move(strides)) {
  std::int64_t expected = 1;
  for (std::size_t d = sizes_.size(); d-- > 0;) {
    row_numel_ *= sizes_[d];
    if (sizes_[d] <= 1) continue;
    row_major_ = row_major_ && strides_[d] == expected;
    expected *= sizes_[d];
    if (dim_ < 0 || strides_[d] > strides_[static_cast<std::size_t>(dim_)]) dim_ = static_cast<int>(d);
  }
  if (dim_ < 0) return;
  rows_ = sizes_[static_cast<std::size_t>(dim_)];
  row_numel_ /= rows_;
}

std::vector<std::int64_t> FlatRows::offsets(std::int64_t begin) const {
  std::vector<std::int64_t> offsets(sizes_.size(), 0);
  if (dim_ >= 0) offsets[static_cast<std::size_t>(dim_)] = begin;
  return offsets;
}

std::vector<std::int64_t> FlatRows::shape(std::int64_t begin, std::int64_t end) const {
  auto shape = sizes_;
  if (dim_ >= 0) shape[static_cast<std::size_t>(dim_)] = end - begin;
  return shape;
}

at::Tensor FlatRows::block(const at::Tensor& flat) const {
  const auto rows = row_numel_ == 0 ? 0 : flat.numel() / row_numel_;
  return flat.as_strided(shape(0, rows), strides_, flat.storage_offset());
}

TensorPart FlatRows::part(const std::string& name, std::int64_t begin, std::vector<at::Tensor> pieces) const {
  std::int64_t numel = 0;
  for (const auto& piece : pieces) numel += piece.numel();
  const auto rows = row_numel_ == 0 ? rows_ : numel / row_numel_;
  TensorPart part{name,           pieces.front().scalar_type(), sizes_,
                  offsets(begin), shape(begin, begin + rows),   std::move(pieces)};
  if (!row_major_)
    part.pieces.assign(1, block(part.pieces.size() == 1 ? part.pieces[0].contiguous() : at::cat(part.pieces)));
  return part;
}

}  // namespace troupe
