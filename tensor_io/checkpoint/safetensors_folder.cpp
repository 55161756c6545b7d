#include "tensor_io/checkpoint/safetensors_folder.hpp"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>

#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/manifest.hpp"
#include "tensor_io/checkpoint/safetensors.hpp"
#include "tensor_io/checkpoint/state_parts.hpp"
#include "tensor_io/files/bounded_json.hpp"
#include "tensor_io/files/file_layer.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (entry->path().extension() == ".safetensors") paths.push_back(entry->path().string());
  }
  if (error) throw_io_error("listing", folder, error.value());
  std::sort(paths.begin(), paths.end());
  return paths;
}

/// Where a file's blocks start in their tensors, by name: what DCP writes; whole tensors where it says nothing.
nlohmann::json offsets_of(const SafetensorsFile& file) {
  const auto found = file.metadata().find("DCP_SHARDING_INFO");
  if (found == file.metadata().end()) return nlohmann::json::object();
  auto sharding = parse_bounded_json(found->second,
                                     file.file().operation() + ": " + file.file().path() + ", DCP_SHARDING_INFO", {});
  if (!sharding.is_object()) file.file().refuse("'DCP_SHARDING_INFO' is not an object");
  return sharding;
}

std::vector<std::int64_t> offsets_of(const SafetensorsFile& file, const nlohmann::json& sharding,
                                     const SafetensorsEntry& entry) {
  std::vector<std::int64_t> offsets(entry.shape.size(), 0);
  const auto found = sharding.find(entry.name);
  if (found == sharding.end()) return offsets;
  const auto refuse = [&] {
    file.file().refuse("'DCP_SHARDING_INFO' of tensor " + printable(entry.name) + " has no good 'saved_offsets'");
  };
  const auto saved = found->is_object() ? found->find("saved_offsets") : found->end();
  if (!found->is_object() || saved == found->end() || !saved->is_array() || saved->size() != offsets.size()) refuse();
  for (std::size_t d = 0; d < offsets.size(); ++d) {
    constexpr auto kMost = std::uint64_t{1} << 62;
    if (!(*saved)[d].is_number_unsigned() || (*saved)[d].get<std::uint64_t>() > kMost ||
        static_cast<std::uint64_t>(entry.shape[d]) > kMost)
      refuse();
    offsets[d] = (*saved)[d].get<std::int64_t>();
  }
  return offsets;
}

}  // namespace

bool holds_safetensors(const std::string& folder) { return !files_of(folder).empty(); }

NamedTensors read_safetensors_folder(const std::string& folder) {
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files;
  std::map<std::string, ManifestTensor> tensors;
  for (const auto& path : files_of(folder)) {
    const auto& file = *files.emplace(path, std::make_unique<SafetensorsFile>(path)).first->second;
    const auto sharding = offsets_of(file);
    for (const auto& entry : file.entries()) {
      const auto offsets = offsets_of(file, sharding, entry);
      auto& tensor =
          tensors
              .try_emplace(
                  entry.name,
                  ManifestTensor{entry.name, entry.dtype, std::vector<std::int64_t>(entry.shape.size(), 0), {}})
              .first->second;
      if (tensor.dtype != entry.dtype || tensor.shape.size() != entry.shape.size())
        file.file().refuse("tensor " + printable(entry.name) +
                           " has another dtype or number of dimensions than in a file before");
      // Nobody says how large the whole is: as large as its blocks reach.
      for (std::size_t d = 0; d < offsets.size(); ++d)
        tensor.shape[d] = std::max(tensor.shape[d], offsets[d] + entry.shape[d]);
      tensor.slices.push_back({path, offsets, entry.shape});
    }
  }
  NamedTensors whole;
  for (const auto& [name, tensor] : tensors) {
    if (const auto why = wrong_slices(tensor, true); !why.empty())
      throw Error(ErrorCode::bad_data, "reading safetensors: " + folder, "tensor " + printable(name) + " " + why,
                  "is a file missing?");
    const auto values = empty_tensor(tensor.shape, tensor.dtype, "reading safetensors: " + folder);
    for (const auto& slice : tensor.slices) {
      const auto& file = *files.at(slice.file);
      block_of(values, slice.offsets, slice.shape).copy_(file.read(*file.find(name)));
    }
    whole.emplace_back(name, values);
  }
  return whole;
}

}  // namespace troupe
