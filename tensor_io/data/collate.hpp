#pragma once
#include <map>
#include <string>
#include <vector>

#include "tensor_io/data/dataset.hpp"

namespace troupe {

/// Functions for Dataset::collate: pure, any thread. A batch's tensors are new memory on the samples' device. It has no
/// index yet. Both throw Error(usage) that names `dataset`, the field and the sample.

/// Each field of the samples as one tensor (n, ...) of the same dtype. All samples must have the same names, in the
/// same order, shapes and dtypes.
Batch stack(const std::vector<Example>& examples, const std::string& dataset = "data set");

/// The padding of `pad_to_longest`.
struct PadOptions {
  std::map<std::string, double> values = {};  ///< by field, if it is not 0: `{{"labels", -100}}`
  /// Name of the mask that is added, (n, longest) bool: true is a sample's own, false is padding. As bool it suits
  /// scaled_dot_product_attention; nn::MultiheadAttention's key_padding_mask is its logical_not(). Empty: none.
  std::string mask = "attention_mask";
  std::string mask_of = {};  ///< the field whose lengths the mask has; empty: the first one
};

/// As stack, but samples may differ in a field's first dimension, which is padded at its end to the longest of the
/// batch. It may be 0. A field without dimensions, such as a label, is stacked; it can have neither a value nor the
/// mask.
Batch pad_to_longest(const std::vector<Example>& examples, const PadOptions& options = {},
                     const std::string& dataset = "data set");

}  // namespace troupe
