#include "launch/process/scratch_folder.hpp"

#include <stdlib.h>

#include <filesystem>

#include "tensor_io/base/error.hpp"

namespace troupe {

ScratchFolder::ScratchFolder(const std::string& name) {
  std::string path = (std::filesystem::temp_directory_path() / (name + "-XXXXXX")).string();
  if (::mkdtemp(path.data()) == nullptr) throw Error(ErrorCode::io, path, "it can't be made");
  path_ = path;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace troupe
