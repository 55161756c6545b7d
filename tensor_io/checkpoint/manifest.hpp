#pragma once
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tensor_io/files/xxh3.hpp"

namespace troupe {

/// The part of a global tensor that one file holds, under the tensor's name.
struct TensorSlice {
  std::string file;                   ///< name within the checkpoint's folder
  std::vector<std::int64_t> offsets;  ///< its start in the global tensor, one per dimension
  std::vector<std::int64_t> shape;
};

struct ManifestTensor {
  std::string name;
  at::ScalarType dtype = at::ScalarType::Float;
  std::vector<std::int64_t> shape;  ///< of the global tensor
  std::vector<TensorSlice> slices;  ///< disjoint; together they are the tensor
};

/// Why the slices are not the tensor: one reaches out of it, two overlap, or, for a `whole` one, a part is missing.
/// Empty if they are the tensor.
std::string wrong_slices(const ManifestTensor& tensor, bool whole);

/// `manifest.json`: the parts of a checkpoint. It has its own XXH3-64, so a torn or damaged one is recognised. A value;
/// any thread.
struct Manifest {
  static constexpr std::int64_t kFormatVersion = 1;
  static constexpr std::uint64_t kMaxBytes = std::uint64_t{64} << 20;
  static constexpr std::size_t kMaxRanks = 65'536;
  static constexpr std::size_t kMaxSlices = 4096;  // of one tensor

  std::int64_t step = 0;
  std::int64_t epoch = 0;
  std::int64_t step_in_epoch = 0;
  std::int64_t ranks = 0;                       ///< there is a rank-*.json for each
  std::string attempt;                          ///< to save it, see SaveAttempt
  std::map<std::string, std::string> metadata;  ///< TrainingState's
  std::map<std::string, FileDigest> files;      ///< by name: every file of the folder but this one
  std::vector<ManifestTensor> tensors;          ///< sorted by name

  /// Of a checkpoint, or of one rank's part until it is published.
  enum class Kind { whole, part };

  /// Throws Error(usage) if a text is not valid UTF-8, or it has more than from_text accepts.
  std::string to_text(Kind kind = Kind::whole) const;
  /// Trusts nothing: checks the hash first, then version, types, ranges, names, and, for a whole one, that slices fill
  /// their tensors exactly. Throws Error(bad_data) whose operation is `where`.
  static Manifest from_text(std::string_view text, const std::string& where, Kind kind = Kind::whole);

 private:
  void check_readable(const std::string& text) const;
};

/// The manifest of a checkpoint out of its ranks' parts, by rank; step and metadata are those of the first. Throws
/// Error(bad_data), whose operation is `where`, if they are not of one checkpoint; from_text checks whether they are
/// all of it.
Manifest merge_manifests(std::vector<Manifest> parts, const std::string& where);

/// `rank-00003.safetensors`, `rank-00003.json`, `rank-00003.part`.
std::string rank_tensor_file(std::int64_t rank);
std::string rank_state_file(std::int64_t rank);
std::string rank_part_file(std::int64_t rank);

}  // namespace troupe
