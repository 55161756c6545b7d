#include "tensor_io/checkpoint/safetensors_folder.hpp"

#include <algorithm>
#include <map>
#include <memory>

#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/manifest.hpp"
#include "tensor_io/checkpoint/safetensors.hpp"
#include "tensor_io/checkpoint/safetensors_index.hpp"
#include "tensor_io/checkpoint/state_parts.hpp"
#include "tensor_io/files/bounded_json.hpp"

namespace troupe {
namespace {

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
    file.file().refuse("'DCP_SHARDING_INFO' of tensor " + printable(entry.name) + " has no valid 'saved_offsets'");
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

// What the index says of a file is in it. What is in it besides is read, too, as transformers does.
void check_listed(const SafetensorsIndex& index, const std::string& name, const SafetensorsFile& file,
                  std::vector<std::string>* notes) {
  if (index.path.empty()) return;
  for (const auto& [tensor, where] : index.file_of) {
    if (where == name && file.find(tensor) == nullptr)
      file.file().refuse("tensor " + printable(tensor) + " is missing, although the index says that it is here",
                         "download the file and the index again");
  }
  std::vector<std::string> unlisted;
  for (const auto& entry : file.entries()) {
    if (!index.file_of.contains(entry.name)) unlisted.push_back(entry.name);
  }
  if (notes != nullptr && !unlisted.empty())
    notes->push_back(name + " has tensors that the index does not list; they are read too: " + names_text(unlisted));
}

}  // namespace

NamedTensors read_safetensors_folder(const std::string& folder, std::vector<std::string>* notes) {
  const auto index = index_of_folder(folder);
  if (notes != nullptr) notes->insert(notes->end(), index.notes.begin(), index.notes.end());
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files;
  std::map<std::string, ManifestTensor> tensors;
  for (const auto& name : index.files) {
    const auto& file = *files.emplace(name, std::make_unique<SafetensorsFile>(folder + "/" + name)).first->second;
    check_listed(index, name, file, notes);
    const auto sharding = offsets_of(file);
    for (const auto& entry : file.entries()) {
      const auto listed = index.file_of.find(entry.name);
      if (listed != index.file_of.end() && listed->second != name) continue;
      const auto offsets = offsets_of(file, sharding, entry);
      auto& tensor =
          tensors
              .try_emplace(
                  entry.name,
                  ManifestTensor{entry.name, entry.dtype, std::vector<std::int64_t>(entry.shape.size(), 0), {}})
              .first->second;
      if (tensor.dtype != entry.dtype || tensor.shape.size() != entry.shape.size())
        file.file().refuse("tensor " + printable(entry.name) +
                           " has a different dtype or number of dimensions than in an earlier file");
      // The files do not say how large the whole is: as large as its blocks reach.
      for (std::size_t d = 0; d < offsets.size(); ++d)
        tensor.shape[d] = std::max(tensor.shape[d], offsets[d] + entry.shape[d]);
      tensor.slices.push_back({name, offsets, entry.shape});
    }
  }
  NamedTensors whole;
  for (const auto& [name, tensor] : tensors) {
    if (const auto why = wrong_slices(tensor, true); !why.empty())
      throw Error(ErrorCode::bad_data, "reading safetensors: " + folder, "tensor " + printable(name) + " " + why,
                  index.absent.empty() ? "check whether a file is missing, or there is one too many"
                                       : "add " + names_text(index.absent));
    const auto values = empty_tensor(tensor.shape, tensor.dtype, "reading safetensors: " + folder);
    for (const auto& slice : tensor.slices) {
      const auto& file = *files.at(slice.file);
      block_of(values, slice.offsets, slice.shape).copy_(file.read(*file.find(name)));
    }
    whole.emplace_back(name, values);
  }
  if (notes != nullptr && !index.absent.empty())
    notes->push_back("missing: " + names_text(index.absent) + ", which is fine if that rank had nothing to save");
  return whole;
}

}  // namespace troupe
