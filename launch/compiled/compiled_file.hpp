#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "launch/compiled/compiled_manifest.hpp"
#include "tensor_io/files/bounded_file.hpp"
#include "tensor_io/layout/named_tensors.hpp"

namespace troupe {

/// The file of a compiled model (docs/formats.md). It holds machine code, so it is as trusted as a program: it must
/// belong to this user or root, and others must not be able to write to it. Each section's SHA-256 is compared before
/// the section is used. Any thread.
class CompiledFile {
 public:
  /// Throws Error(bad_data), and Error(unavailable) for a model that is compiled for another version of LibTorch or
  /// another processor.
  explicit CompiledFile(const std::string& path);

  const CompiledManifest& manifest() const noexcept { return manifest_; }
  const std::string& path() const noexcept { return file_.path(); }
  /// Changes with any byte of the file that is used.
  std::uint64_t hash() const noexcept { return hash_; }

  /// First values of parameters and buffers, and constants as `constant:NAME`, in new memory.
  NamedTensors values() const;
  /// A section as a file of this process: its code is opened from memory, so no folder needs to be writable or allow
  /// execution, and nothing is left behind. Owns the descriptor.
  class InMemory {
   public:
    explicit InMemory(int fd) : fd_(fd) {}
    InMemory(const InMemory&) = delete;
    InMemory& operator=(const InMemory&) = delete;
    ~InMemory();
    /// A new text for each: dlopen knows libraries by their names, and the number may be that of a closed one.
    std::string path() const;

   private:
    int fd_;
  };
  std::unique_ptr<InMemory> section_in_memory(const std::string& name) const;

 private:
  const CompiledSection& checked(const std::string& name) const;

  BoundedFile file_;
  std::uint64_t sections_begin_ = 0, hash_ = 0;
  CompiledManifest manifest_;
};

/// The instructions of `needed`, named as in /proc/cpuinfo, that this processor lacks; `cpuinfo`: that file's text.
std::string missing_instructions(const std::vector<std::string>& needed, std::string_view cpuinfo);

}  // namespace troupe
