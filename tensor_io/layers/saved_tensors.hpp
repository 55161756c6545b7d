#pragma once
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

#include "tensor_io/base/held_value.hpp"

namespace troupe {

/// Decides where autograd keeps the saved tensors of a node for its backward, for nodes that are made while a
/// SavedTensorScope is set.
class SavedTensorStore {
 public:
  virtual ~SavedTensorStore() = default;
  /// For one tensor: its pack hook is called when the node is made, the unpack hook when the node runs. It dies when
  /// the node drops its saved tensors. It may be requested and then not used.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> keeper() = 0;
};

/// On its thread, while it lives; may be nested, the innermost counts. nullptr: LibTorch's own keeping.
///
/// LibTorch asks its autograd engine for such hooks; PyTorch's Python layer answers with those of torch.autograd.graph
/// .saved_tensors_hooks, the C++ one with none. So this installs an engine that differs in this answer only, once per
/// process, and leaves the work to LibTorch's own. Throws Error(unavailable) if a Python interpreter's engine is
/// installed already.
class SavedTensorScope : HeldValue<SavedTensorStore*> {
 public:
  explicit SavedTensorScope(SavedTensorStore* store);
};

}  // namespace troupe
