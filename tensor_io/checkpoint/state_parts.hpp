#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tensor_io/layout/named_state.hpp"

namespace troupe {

/// The block of `shape` that starts at `offsets`. A view.
at::Tensor block_of(at::Tensor tensor, at::IntArrayRef offsets, at::IntArrayRef shape);

/// The whole tensor as a part.
TensorPart whole_part(const std::string& name, const at::Tensor& tensor);
/// Rows [begin, end) of the first dimension; `tensor` is the whole one, and the part a view of it.
TensorPart rows_part(const std::string& name, const at::Tensor& tensor, std::int64_t begin, std::int64_t end);

/// Rank `rank`'s part, of `ranks`, of tensors that every rank has: about as many bytes as each other rank's, cut
/// between the rows of a tensor. Views of the tensors. The same tensors give each rank its own part, and nothing twice.
/// A pure function of names and shapes.
std::vector<TensorPart> parts_for(const NamedTensors& tensors, std::int64_t rank, std::int64_t ranks);

/// Rank `rank`'s part of tensors that may differ between ranks (buffers): rank 0 has all of them.
std::vector<TensorPart> parts_of_first(const NamedTensors& tensors, std::int64_t rank);

/// A part's values as one tensor of its shape on the CPU; a view if it is one piece.
at::Tensor values_of(const TensorPart& part);

}  // namespace troupe
