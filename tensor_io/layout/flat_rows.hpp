#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tensor_io/layout/named_state.hpp"

namespace troupe {

/// A parameter in a flat parameter, in the order of its elements in memory, cut into rows along its outermost
/// dimension. Rows are the largest blocks that follow each other in memory for any strides. A shard's borders fall
/// anywhere; checkpoints hold whole rows. A value.
class FlatRows {
 public:
  FlatRows(std::vector<std::int64_t> sizes, std::vector<std::int64_t> strides);

  std::int64_t numel() const noexcept { return rows_ * row_numel_; }
  std::int64_t row_numel() const noexcept { return row_numel_; }
  /// The first row that begins at element `begin` or later.
  std::int64_t row_from(std::int64_t begin) const noexcept {
    return row_numel_ == 0 ? rows_ : (begin + row_numel_ - 1) / row_numel_;
  }
  /// The row that element `element` is in.
  std::int64_t row_of(std::int64_t element) const noexcept { return element / row_numel_; }

  /// The start of rows [begin, end) in the tensor, and their shape.
  std::vector<std::int64_t> offsets(std::int64_t begin) const;
  std::vector<std::int64_t> shape(std::int64_t begin, std::int64_t end) const;
  /// (rows * row_numel,) elements in the order of memory, as a block of the tensor. A view.
  at::Tensor block(const at::Tensor& flat) const;
  /// Rows [begin, ...) as a part; `pieces`, 1-D, end to end in the order of memory, are all of them.
  TensorPart part(const std::string& name, std::int64_t begin, std::vector<at::Tensor> pieces) const;

 private:
  std::vector<std::int64_t> sizes_, strides_;
  int dim_ = -1;  // the rows'; -1: there is one row
  std::int64_t rows_ = 1, row_numel_ = 1;
  bool row_major_ = true;
};

}  // namespace troupe
