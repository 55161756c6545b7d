#pragma once
#include <string>
#include <vector>

#include "tensor_io/layout/named_state.hpp"

namespace troupe {

/// The tensors of a folder's `*.safetensors` files (index_of_folder says which), each whole, sorted by name: a Hugging
/// Face model of several files, or a checkpoint of torch.distributed.checkpoint's Hugging Face writer, whose files say
/// where their blocks lie in the tensors. `notes` gets a sentence for whatever was passed over or is in doubt. Throws
/// Error(bad_data) with file and tensor for what is damaged or missing, lacks a block or has one twice.
NamedTensors read_safetensors_folder(const std::string& folder, std::vector<std::string>* notes = nullptr);

}  // namespace troupe
