#pragma once
#include <string>

#include "tensor_io/layout/named_state.hpp"

namespace troupe {

/// Whether a folder that is no checkpoint of ours holds safetensors files.
bool holds_safetensors(const std::string& folder);

/// The tensors of all `*.safetensors` files of a folder, each whole, sorted by name: a Hugging Face model of several
/// files, or a checkpoint of torch.distributed.checkpoint's Hugging Face writer, whose files say where their blocks lie
/// in the tensors. Throws Error(bad_data) with file and tensor for what is damaged, lacks a block or has one twice.
NamedTensors read_safetensors_folder(const std::string& folder);

}  // namespace troupe
