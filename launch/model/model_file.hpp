#pragma once
#include <string>
#include <vector>

#include "tensor_io/layout/named_state.hpp"

namespace torch::nn {
class Module;
}

namespace troupe {

/// A model's tensors under PyTorch's names. The source is a .safetensors file, a torch.save file (recognised by its
/// bytes), a checkpoint's folder, a directory of checkpoints (its latest), a name in it (`best`), or a foreign folder
/// of safetensors files. Links are followed. `everything`: of a checkpoint all tensors, under their full names. `notes`
/// gets a sentence for each thing left out. Throws Error(usage) if nothing is there, Error(bad_data).
NamedTensors read_model(const std::string& path, bool everything = false, std::vector<std::string>* notes = nullptr);

/// Parameters and buffers under their names; live ones, parameters detached.
NamedTensors live_tensors(torch::nn::Module& model);

/// A folder of safetensors files that is no checkpoint of ours: of Hugging Face, of torch.distributed.checkpoint.
bool is_foreign_folder(const std::string& path);

/// The checkpoint that a path means: the folder itself, or a directory's latest. Throws Error(usage) if there is none,
/// Error(bad_data) if there is another program's.
std::string checkpoint_at(const std::string& path);

struct InitialModelOptions {
  std::string path;    ///< as in read_model
  std::string rename;  ///< `old=new,…`: a name that begins with `old` begins with `new` instead; the first match counts
  bool allow_missing = false;  ///< keeps tensors of the file or the model alone, or in another shape
  bool by_config = true;       ///< errors name the config's settings; else load_weights and LoadOptions
};

/// Copies a file's values into the model's parameters and buffers of the same names, converting dtypes. All or nothing.
/// Returns the matches and the others, for the log. Throws Error(mismatch) that names the first differences,
/// Error(usage) for a rename that matches nothing.
std::string load_initial_model(torch::nn::Module& model, const InitialModelOptions& options);

}  // namespace troupe
