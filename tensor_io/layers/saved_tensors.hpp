#pragma once
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

#include "tensor_io/base/held_value.hpp"

namespace troupe {

/// Says where autograd keeps what a node saves for its backward, for the nodes that are made while a SavedTensorScope
/// is set.
class SavedTensorStore {
 public:
  virtual ~SavedTensorStore() = default;
  /// For one tensor: its pack hook is called when the node is made, the unpack hook when the node runs; it goes when
  /// the node drops what it saved. It may be asked for and then not used.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> keeper() = 0;
};

/// On its thread, while it lives; may be nested, the innermost counts. nullptr: LibTorch's own keeping.
///
/// LibTorch asks its autograd engine for such hooks; PyTorch's Python layer answers with those of torch.autograd.graph
/// .saved_tensors_hooks, the C++ one with none. So this puts an engine in its place that differs in this answer only,
/// once per process, and has the work done by LibTorch's own. Throws Error(unavailable) where a Python interpreter's
/// engine is in place already.
class SavedTensorScope : HeldValue<SavedTensorStore*> {
 public:
  explicit SavedTensorScope(SavedTensorStore* store);
};

}  // namespace troupe
