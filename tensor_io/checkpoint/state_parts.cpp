#include "tensor_io/checkpoint/state_parts.hpp"

#include <ATen/ops/cat.h>

#include <algorithm>

namespace troupe {

std::size_t TensorPart::bytes() const {
  std::size_t total = c10::elementSize(dtype);
  for (const auto length : shape) total *= static_cast<std::size_t>(length);
  return total;
}

at::Tensor block_of(at::Tensor tensor, at::IntArrayRef offsets, at::IntArrayRef shape) {
  for (std::size_t d = 0; d < shape.size(); ++d)
    tensor = tensor.narrow(static_cast<std::int64_t>(d), offsets[d], shape[d]);
  return tensor;
}

TensorPart whole_part(const std::string& name, const at::Tensor& tensor) {
  const auto shape = tensor.sizes().vec();
  return {name, tensor.scalar_type(), shape, std::vector<std::int64_t>(shape.size(), 0), shape, {tensor}};
}

TensorPart rows_part(const std::string& name, const at::Tensor& tensor, std::int64_t begin, std::int64_t end) {
  auto part = whole_part(name, tensor.narrow(0, begin, end - begin));
  part.global_shape[0] = tensor.size(0);
  part.offsets[0] = begin;
  return part;
}

std::vector<TensorPart> parts_for(const NamedTensors& tensors, std::int64_t rank, std::int64_t ranks) {
  std::uint64_t total = 0;
  for (const auto& [name, tensor] : tensors) total += tensor.nbytes();
  // A row belongs to the rank in whose share of all bytes it begins.
  const auto border = [&](std::int64_t of) {  // total * of / ranks
    const auto numerator = static_cast<std::uint64_t>(of), denominator = static_cast<std::uint64_t>(ranks);
    return total / denominator * numerator + total % denominator * numerator / denominator;
  };
  const auto first = border(rank), last = border(rank + 1);
  std::vector<TensorPart> parts;
  std::uint64_t begin = 0;  // of the tensor, in all bytes
  for (const auto& [name, tensor] : tensors) {
    const std::uint64_t bytes = tensor.nbytes();
    if (bytes == 0) {
      if (rank == 0) parts.push_back(whole_part(name, tensor));
      continue;
    }
    const auto rows = tensor.dim() == 0 ? 1 : tensor.size(0);
    const auto row = bytes / static_cast<std::uint64_t>(rows);
    const auto row_at = [&](std::uint64_t position) {  // the first row that begins there or later
      if (position <= begin) return std::int64_t{0};
      return std::min(rows, static_cast<std::int64_t>((position - begin + row - 1) / row));
    };
    const auto from = row_at(first), to = row_at(last);
    if (from < to) parts.push_back(to - from == rows ? whole_part(name, tensor) : rows_part(name, tensor, from, to));
    begin += bytes;
  }
  return parts;
}

std::vector<TensorPart> parts_of_first(const NamedTensors& tensors, std::int64_t rank) {
  return rank == 0 ? parts_for(tensors, 0, 1) : std::vector<TensorPart>();
}

at::Tensor values_of(const TensorPart& part) {
  if (part.pieces.size() == 1) return part.pieces[0].detach().cpu().contiguous().view(part.shape);
  std::vector<at::Tensor> flat;
  for (const auto& piece : part.pieces) flat.push_back(piece.detach().cpu().contiguous().view(-1));
  return at::cat(flat).view(part.shape);
}

}  // namespace troupe
