#include <ATen/core/Tensor.h>

#include <algorithm>
#include <numeric>

#include <nlohmann/json.hpp>

#include "tensor_io/error.hpp"
#include "tensor_io/safetensors.hpp"

namespace troupe {

namespace {

constexpr const char* kOperation = "writing safetensors";

void check(const NamedTensors& tensors) {
  auto refuse = [](const std::string& name, const std::string& why) {
    throw Error(ErrorCode::usage, kOperation, "tensor " + printable(name) + " " + why);
  };
  if (tensors.size() > SafetensorsFile::kMaxTensors)
    throw Error(ErrorCode::usage, kOperation, std::to_string(tensors.size()) + " tensors, more than a file may hold");
  std::vector<std::string_view> names;
  for (const auto& [name, tensor] : tensors) {
    if (const auto why = refused_name(name); !why.empty()) refuse(name, why);
    if (!tensor.defined()) refuse(name, "is undefined");
    if (!safetensors_dtype(tensor.scalar_type()))
      refuse(name, std::string("has dtype ") + c10::toString(tensor.scalar_type()) + ", which the format does not hold");
    if (tensor.layout() != at::kStrided) refuse(name, "is sparse");
    if (static_cast<std::size_t>(tensor.dim()) > SafetensorsFile::kMaxDimensions) refuse(name, "has too many dimensions");
    names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end())
    refuse(std::string(*twice), "is there twice");
}

std::string make_head(const NamedTensors& tensors, const std::vector<std::size_t>& order, std::map<std::string, std::string> metadata,
                      const std::map<std::string, std::vector<std::int64_t>>& offsets) {
  using nlohmann::json;
  metadata["format"] = "pt";
  metadata["DCP_VERSION"] = "1.0";
  std::string text;
  try {
    json sharding = json::object();
    std::string entries;
    std::uint64_t end = 0;
    for (const auto index : order) {
      const auto& [name, tensor] = tensors[index];
      const std::uint64_t begin = end;
      end += tensor.nbytes();
      const json entry = {
          {"dtype", *safetensors_dtype(tensor.scalar_type())}, {"shape", tensor.sizes().vec()}, {"data_offsets", {begin, end}}};
      entries += "," + json(name).dump() + ":" + entry.dump();
      const auto offset = offsets.find(name);
      sharding[name]["saved_offsets"] =
          offset != offsets.end() ? offset->second : std::vector<std::int64_t>(static_cast<std::size_t>(tensor.dim()), 0);
    }
    metadata["DCP_SHARDING_INFO"] = sharding.dump();
    text = "{\"__metadata__\":" + json(metadata).dump() + entries + "}";  // in the order of the offsets, as the reference writer has it
  } catch (const json::exception&) {
    throw Error(ErrorCode::usage, kOperation, "a name or a metadata value is not valid UTF-8");
  }
  // The tensors begin at a page, so that they can go to disk without a copy.
  text.resize((text.size() + 8 + DurableFile::kPage - 1) / DurableFile::kPage * DurableFile::kPage - 8, ' ');
  if (text.size() > SafetensorsFile::kMaxHeaderBytes)
    throw Error(ErrorCode::usage, kOperation,
                "names and metadata need " + std::to_string(text.size()) + " bytes, more than readers accept");
  std::string head(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) head[i] = static_cast<char>(static_cast<std::uint64_t>(text.size()) >> (8 * i));
  return head + text;
}

}  // namespace

std::vector<std::size_t> safetensors_order(const NamedTensors& tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const auto& [name_a, tensor_a] = tensors[a];
    const auto& [name_b, tensor_b] = tensors[b];
    return tensor_a.element_size() != tensor_b.element_size() ? tensor_a.element_size() > tensor_b.element_size() : name_a < name_b;
  });
  return order;
}

void write_safetensors(DurableFile& file, const NamedTensors& tensors, const std::map<std::string, std::string>& metadata,
                       const std::map<std::string, std::vector<std::int64_t>>& offsets) {
  check(tensors);
  const auto order = safetensors_order(tensors);
  file.append(make_head(tensors, order, metadata, offsets));
  // Neighbours in memory (a Snapshot's tensors) are written as one.
  std::span<const std::byte> run;
  at::Tensor kept;
  for (const auto index : order) {
    auto values = tensors[index].second.detach().cpu().contiguous();  // no copy where it is both already
    const std::span bytes(static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes());
    if (bytes.empty()) continue;
    if (run.data() + run.size() == bytes.data() && values.storage().is_alias_of(kept.storage())) {
      run = {run.data(), run.size() + bytes.size()};
    } else {
      file.append(run);
      run = bytes;
    }
    kept = std::move(values);
  }
  file.append(run);
}

void save_safetensors(const std::string& path, const NamedTensors& tensors, const std::map<std::string, std::string>& metadata,
                      FileLayer& files) {
  replace_file(path, files, [&](DurableFile& file) { write_safetensors(file, tensors, metadata); });
}

}  // namespace troupe
