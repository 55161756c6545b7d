#include <ATen/core/Tensor.h>

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/safetensors.hpp"
#include "tensor_io/checkpoint/state_parts.hpp"

namespace troupe {

namespace {

constexpr const char* kOperation = "writing safetensors";

void check(const std::vector<TensorPart>& parts) {
  auto refuse = [](const std::string& name, const std::string& why) {
    throw Error(ErrorCode::usage, kOperation, "tensor " + printable(name) + " " + why);
  };
  if (parts.size() > SafetensorsFile::kMaxTensors)
    throw Error(ErrorCode::usage, kOperation, std::to_string(parts.size()) + " tensors, more than a file may hold");
  std::vector<std::string_view> names;
  for (const auto& part : parts) {
    if (const auto why = refused_name(part.name); !why.empty()) refuse(part.name, why);
    if (!safetensors_dtype(part.dtype))
      refuse(part.name, std::string("has dtype ") + c10::toString(part.dtype) + ", which the format does not hold");
    if (part.shape.size() > SafetensorsFile::kMaxDimensions) refuse(part.name, "has too many dimensions");
    std::size_t bytes = 0;
    for (const auto& piece : part.pieces) {
      if (!piece.defined()) refuse(part.name, "is undefined");
      if (piece.layout() != at::kStrided) refuse(part.name, "is sparse");
      if (piece.scalar_type() != part.dtype) refuse(part.name, "has pieces of another dtype");
      bytes += piece.nbytes();
    }
    if (bytes != part.bytes()) refuse(part.name, "has pieces that are not its block");
    names.push_back(part.name);
  }
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end())
    refuse(std::string(*twice), "appears twice");
}

std::uint64_t tensor_bytes(const std::vector<TensorPart>& parts) {
  std::uint64_t bytes = 0;
  for (const auto& part : parts) bytes += part.bytes();
  return bytes;
}

// The chunks of the tensors are chunks of the file where the first one begins one.
void expect_hashes(DurableFile& file, const ChunkHashes& hashes, std::uint64_t begin) {
  if (begin % FileDigest::kChunkBytes != 0) return;
  ChunkHashes shifted;
  for (const auto& [index, hash] : hashes)
    shifted.emplace_hint(shifted.end(), begin / FileDigest::kChunkBytes + index, hash);
  file.expect(shifted);
}

std::string make_head(const std::vector<TensorPart>& parts, std::map<std::string, std::string> metadata) {
  using nlohmann::json;
  metadata["format"] = "pt";
  metadata["DCP_VERSION"] = "1.0";
  std::string text;
  try {
    json sharding = json::object();
    std::string entries;
    std::uint64_t end = 0;
    for (const auto& part : parts) {
      const std::uint64_t begin = end;
      end += part.bytes();
      const json entry = {
          {"dtype", *safetensors_dtype(part.dtype)}, {"shape", part.shape}, {"data_offsets", {begin, end}}};
      entries += "," + json(part.name).dump() + ":" + entry.dump();
      sharding[part.name]["saved_offsets"] = part.offsets;
    }
    metadata["DCP_SHARDING_INFO"] = sharding.dump();
    text = "{\"__metadata__\":" + json(metadata).dump() + entries +
           "}";  // in the order of the offsets, as the reference writer has it
  } catch (const json::exception&) {
    throw Error(ErrorCode::usage, kOperation, "a name or a metadata value is not valid UTF-8");
  }
  const auto unit = static_cast<std::size_t>(tensors_begin_at(tensor_bytes(parts)));
  text.resize((text.size() + 8 + unit - 1) / unit * unit - 8, ' ');
  if (text.size() > SafetensorsFile::kMaxHeaderBytes)
    throw Error(ErrorCode::usage, kOperation,
                "names and metadata need " + std::to_string(text.size()) + " bytes, more than readers accept");
  std::string head(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) head[i] = static_cast<char>(static_cast<std::uint64_t>(text.size()) >> (8 * i));
  return head + text;
}

}  // namespace

void sort_for_file(std::vector<TensorPart>& parts) {
  std::sort(parts.begin(), parts.end(), [](const TensorPart& a, const TensorPart& b) {
    const auto width_a = c10::elementSize(a.dtype), width_b = c10::elementSize(b.dtype);
    return width_a != width_b ? width_a > width_b : a.name < b.name;
  });
}

std::uint64_t tensors_begin_at(std::uint64_t tensor_bytes) noexcept {
  constexpr std::uint64_t kLarge = std::uint64_t{32} << 20;  // the blanks are 3 % at most
  return tensor_bytes >= kLarge ? FileDigest::kChunkBytes : DurableFile::kPage;
}

void write_safetensors(DurableFile& file, const std::vector<TensorPart>& parts, const SafetensorsOptions& options) {
  check(parts);
  const auto head = make_head(parts, options.metadata);
  file.append(head);
  expect_hashes(file, options.hashes, head.size());
  // Neighbours in memory (a Snapshot's tensors) are written as one.
  std::span<const std::byte> run;
  at::Tensor kept;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i == options.live && options.live_written) {
      file.append(std::exchange(run, {}));
      options.live_written();
    }
    for (const auto& piece : parts[i].pieces) {
      auto values = piece.detach().cpu().contiguous();  // no copy where it is both already
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
  }
  file.append(run);
  if (options.live >= parts.size() && options.live_written) options.live_written();
}

void save_safetensors(const std::string& path, const NamedTensors& tensors,
                      const std::map<std::string, std::string>& metadata, FileLayer& files) {
  std::vector<TensorPart> parts;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined()) throw Error(ErrorCode::usage, kOperation, "tensor " + printable(name) + " is undefined");
    parts.push_back(whole_part(name, tensor));
  }
  sort_for_file(parts);
  replace_file(path, files, [&](DurableFile& file) { write_safetensors(file, parts, {.metadata = metadata}); });
}

}  // namespace troupe
