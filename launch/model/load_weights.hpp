#pragma once
#include <memory>
#include <string>

namespace torch::nn {
class Module;
}

namespace troupe {

/// How `load_weights` matches names.
struct LoadOptions {
  std::string rename;          ///< `old=new,...`: a name that begins with `old` begins with `new` instead
  bool allow_missing = false;  ///< keeps tensors that only the file or only the model has, or in another shape
};

/// Copies weights into the model's parameters and buffers of the same names, converting dtypes. The source is a
/// checkpoint's folder, a directory of checkpoints (its latest), a name in it (`best`), a .safetensors or torch.save
/// file, or a folder of safetensors files. All or nothing; no rank and no config are needed. Returns a description, for
/// a log. The model stays in its mode: call `model->eval()` before inference.
///
///     auto model = std::make_shared<MyModel>();
///     troupe::load_weights(*model, "runs/latest/checkpoints/best");
///     model->eval();
///
/// Throws Error(mismatch) that names the first differences, Error(usage) if nothing is there or a rename matches
/// nothing, Error(bad_data).
std::string load_weights(torch::nn::Module& model, const std::string& path, const LoadOptions& options = {});

/// The same for a module holder (TORCH_MODULE).
template <class Holder>
requires requires(const Holder& holder) { holder.ptr(); }
std::string load_weights(const Holder& holder, const std::string& path, const LoadOptions& options = {}) {
  return load_weights(*holder.ptr(), path, options);
}

}  // namespace troupe
