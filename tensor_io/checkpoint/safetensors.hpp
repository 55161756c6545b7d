#pragma once
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor_io/files/bounded_file.hpp"
#include "tensor_io/files/file_layer.hpp"
#include "tensor_io/layout/named_state.hpp"

/// The safetensors format: eight bytes with the header's length, a JSON header, the tensors' bytes without gaps. Little
/// endian, as every machine that LibTorch runs on. Types of less than eight bits (F4, F6) are refused: LibTorch has no
/// tensor of one such number.
namespace troupe {

/// `F32` and so on; nothing for a dtype that the format or Troupe does not have.
std::optional<std::string_view> safetensors_dtype(at::ScalarType dtype) noexcept;
std::optional<at::ScalarType> scalar_type_of(std::string_view safetensors_dtype) noexcept;

/// The number of elements. Nothing if a dimension is negative, or the product, or its bytes of `element_bytes` each,
/// leave 63 bits.
std::optional<std::int64_t> checked_numel(std::span<const std::int64_t> shape, std::size_t element_bytes) noexcept;

/// A CPU tensor without values; Error(unavailable) if there is no memory for it.
at::Tensor empty_tensor(at::IntArrayRef shape, at::ScalarType dtype, const std::string& operation);

/// Why a tensor may not have this name, or empty. Names never become paths here, but another tool may make a path of
/// one.
std::string refused_name(std::string_view name);

struct SafetensorsEntry {
  std::string name;
  at::ScalarType dtype = at::ScalarType::Float;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  ///< offset in the file of its first byte
  std::uint64_t bytes = 0;
};

/// In the reference writer's order: by element width, then by name, so that each is aligned.
void sort_for_file(std::vector<TensorPart>& parts);

/// The tensors of a file begin at a multiple of a number of bytes, which depends on their size. In a small file it is a
/// page, so that they can go to disk without a copy. In a large file it is a chunk of its digest: then chunks of
/// tensors can be hashed before there is a header.
std::uint64_t tensors_begin_at(std::uint64_t tensor_bytes) noexcept;

struct SafetensorsOptions {
  std::map<std::string, std::string> metadata;  ///< goes into `__metadata__`
  ChunkHashes hashes;                  ///< of the tensors' bytes, by chunks counted from the first one's first byte
  std::size_t live = 0;                ///< `live_written` is called once this many tensors, the first ones, are written
  std::function<void()> live_written;  ///< may be empty
};

/// Writes `parts` (on any device; unique names; in a file's order) into `file`, and their start in the global tensors
/// under DCP's sharding key. Throws Error(usage) for a tensor that the format cannot hold, Error(io). The caller
/// finishes the file.
void write_safetensors(DurableFile& file, const std::vector<TensorPart>& parts, const SafetensorsOptions& options = {});

/// One file at `path`, whole or not at all: written beside it, fsynced, renamed over it. `safetensors.torch.load_file`
/// opens it in Python.
void save_safetensors(const std::string& path, const NamedTensors& tensors,
                      const std::map<std::string, std::string>& metadata = {}, FileLayer& files = real_files());

/// A safetensors file from an untrusted source. The constructor reads the header and checks it: at most 100 MB, at most
/// 65,536 tensors of at most 64 dimensions, dtype × shape = range, ranges that tile the rest of the file exactly.
/// Throws Error(bad_data) with file, tensor and field. One thread.
class SafetensorsFile {
 public:
  static constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the reference reader's
  static constexpr std::size_t kMaxTensors = 65'536;
  static constexpr std::size_t kMaxDimensions = 64;
  static constexpr std::size_t kMaxNameBytes = 4096;

  explicit SafetensorsFile(BoundedFile file);
  /// A link is followed.
  explicit SafetensorsFile(const std::string& path)
      : SafetensorsFile(BoundedFile("reading safetensors", path, Links::followed)) {}

  const BoundedFile& file() const noexcept { return file_; }
  const std::vector<SafetensorsEntry>& entries() const noexcept { return entries_; }  ///< in the order of their offsets
  const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }
  /// The bytes before the first tensor: length and header.
  std::span<const std::byte> head() const noexcept { return std::as_bytes(std::span(head_)); }
  /// Null if there is no tensor of that name.
  const SafetensorsEntry* find(std::string_view name) const noexcept;

  /// A new CPU tensor with that entry's values; nothing else of the file is read.
  at::Tensor read(const SafetensorsEntry& entry) const;
  /// `out.size()` bytes of the tensor from its byte `offset` on. Error(usage) outside of the tensor.
  void read_bytes(const SafetensorsEntry& entry, std::uint64_t offset, std::span<std::byte> out) const;

 private:
  BoundedFile file_;
  std::string head_;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
};

/// All tensors, by name in the file's order.
NamedTensors load_safetensors(const std::string& path);

}  // namespace troupe
