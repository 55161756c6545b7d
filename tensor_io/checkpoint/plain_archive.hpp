#pragma once
#include <string>

#include "tensor_io/files/file_layer.hpp"
#include "tensor_io/layout/named_state.hpp"

namespace troupe {

/// The zip files of torch.save, for exchange with Python only: checkpoints are safetensors.

/// One file at `path`, whole or not at all: a dict of tensors that `torch.load(path)` opens with its safe default
/// (weights_only). Tensors on any device; unique names. Throws Error(io).
void save_plain_archive(const std::string& path, const NamedTensors& tensors, FileLayer& files = real_files());

/// Reads a file of `torch.save(model.state_dict(), path)`: the tensors of a dict, those of dicts and lists inside it
/// under `outer.inner`. Other values are left out, and their names go to `skipped`. No code of the file is run, and
/// no tensor reaches out of its storage: the file may be hostile. Tensors that share a storage in the file share
/// memory. A link is followed. Throws Error(bad_data) with the two remedies for a pickled class, TorchScript and old
/// formats.
NamedTensors load_plain_archive(const std::string& path, std::vector<std::string>* skipped = nullptr);

}  // namespace troupe
