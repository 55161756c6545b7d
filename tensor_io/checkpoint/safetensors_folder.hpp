#pragma once
#include <string>
#include <vector>

#include "tensor_io/layout/named_state.hpp"

namespace troupe {

/// The tensors of a folder's `*.safetensors` files (chosen by index_of_folder), each whole, sorted by name: a Hugging
/// Face model of several files, or a checkpoint of torch.distributed.checkpoint's Hugging Face writer. That writer's
/// files have the places of their blocks. `notes` gets a sentence for each thing passed over or in doubt. Throws
/// Error(bad_data) with file and tensor for damage, a missing tensor, and a block that is missing or comes twice.
NamedTensors read_safetensors_folder(const std::string& folder, std::vector<std::string>* notes = nullptr);

}  // namespace troupe
