#pragma once
#include <string>
#include <vector>

#include "tensor_io/layout/named_state.hpp"

namespace torch::nn {
class Module;
}

namespace troupe {

/// A model's tensors under PyTorch's names, from a .safetensors file, a torch.save file (its bytes say which), a
/// checkpoint's folder, a directory of checkpoints (its latest), a name in it (`best`), or a folder of somebody else's
/// safetensors files. Links are followed. `everything`: of a checkpoint all tensors, under their full names. `notes`
/// gets a sentence for whatever was left out. Throws Error(usage) where nothing is there, Error(bad_data).
NamedTensors read_model(const std::string& path, bool everything = false, std::vector<std::string>* notes = nullptr);

/// Parameters and buffers under their names; live ones, parameters detached.
NamedTensors live_tensors(torch::nn::Module& model);

/// A folder of safetensors files that is no checkpoint of ours: of Hugging Face, of torch.distributed.checkpoint.
bool is_foreign_folder(const std::string& path);

/// The checkpoint that a path means: the folder itself, or a directory's latest. Throws Error(usage) where there is
/// none, Error(bad_data) where there is another program's.
std::string checkpoint_at(const std::string& path);

struct InitialModelOptions {
  std::string path;    ///< as read_model's
  std::string rename;  ///< `old=new,…`: a name that begins with `old` begins with `new` instead; the first that fits
  bool allow_missing = false;  ///< what is in the file or in the model alone, or has another shape, is left as it is
  bool by_config = true;       ///< errors name the config's settings; else load_weights and LoadOptions
};

/// Copies a file's values into the model's parameters and buffers of the same names, converting dtypes. All or nothing.
/// Returns what matched and what did not, for the log. Throws Error(mismatch) that names the first differences,
/// Error(usage) for a rename that fits nothing.
std::string load_initial_model(torch::nn::Module& model, const InitialModelOptions& options);

}  // namespace troupe
