#include "launch/process/scratch_folder.hpp"

#include <stdlib.h>

#include <filesystem>

#include "tensor_io/base/error.hpp"

namespace troupe {

ScratchFolder::ScratchFolder(const std::string& name) {
  std::error_code missing;
  const auto below = std::filesystem::temp_directory_path(missing);
  if (missing) throw Error(ErrorCode::io, "TMPDIR", missing.message(), "name a folder that exists");
  std::string path = (below / (name + "-XXXXXX")).string();
  if (::mkdtemp(path.data()) == nullptr) throw Error(ErrorCode::io, path, "it can't be made");
  path_ = path;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace troupe
