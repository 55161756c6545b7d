#pragma once
#include <string>

namespace troupe {

/// A new folder, which is removed with this object.
class ScratchFolder {
 public:
  /// Below the system's folder for temporary files, with `name` in its own. Throws Error(io).
  explicit ScratchFolder(const std::string& name);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const noexcept { return path_; }
  std::string operator/(const std::string& file) const { return path_ + "/" + file; }

 private:
  std::string path_;
};

}  // namespace troupe
