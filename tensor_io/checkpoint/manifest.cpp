#include "tensor_io/checkpoint/manifest.hpp"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <limits>
#include <set>

#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/safetensors.hpp"
#include "tensor_io/files/bounded_file.hpp"
#include "tensor_io/files/bounded_json.hpp"
#include "tensor_io/layout/state_texts.hpp"

namespace troupe {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kFormat = "troupe checkpoint", kPartFormat = "troupe checkpoint part";
// The text ends with these around the 16 digits that hash everything before them.
constexpr std::string_view kBeforeHash = ",\n  \"xxh3\": \"", kAfterHash = "\"\n}\n";
// Of 64 MiB of slices: about eight bytes of memory for each of the text's.
constexpr JsonLimits kLimits{.keys = 3'000'000, .values = 12'000'000};
constexpr const char* kWriting = "writing a checkpoint's manifest";
constexpr std::size_t kTailBytes = kBeforeHash.size() + 16 + kAfterHash.size();

std::string numbered(std::int64_t rank, const char* extension) {
  char text[48];
  std::snprintf(text, sizeof text, "rank-%05lld.%s", static_cast<long long>(rank), extension);
  return text;
}

// One entry a line, so that people and `diff` can read it.
template <class Entries>
std::string lines(const Entries& entries) {
  std::string text = "[";
  for (const auto& entry : entries) text += (text.size() > 1 ? ",\n    " : "\n    ") + entry.dump();
  return text + (entries.empty() ? "]" : "\n  ]");
}

// Typed access to a parsed manifest; what does not fit throws and says where it stands.
class Reader {
 public:
  explicit Reader(const std::string& where) : where_(where) {}

  [[noreturn]] void refuse(const std::string& what, const std::string& why) const {
    throw Error(ErrorCode::bad_data, where_, what + " " + why);
  }

  const json& field(const json& object, const char* key, json::value_t type, const std::string& in) const {
    const std::string what = in + " '" + key + "'";
    if (!object.is_object()) refuse(in, "is not an object");
    const auto found = object.find(key);
    if (found == object.end()) refuse(what, "is missing");
    if (found->type() != type) refuse(what, std::string("is a ") + found->type_name());
    return *found;
  }
  std::int64_t count(const json& object, const char* key, const std::string& in) const {
    return count_of(field(object, key, json::value_t::number_unsigned, in), in + " '" + key + "'");
  }
  std::int64_t count(const json& object, const char* key, const std::string& in, std::int64_t most) const {
    const auto value = count(object, key, in);
    if (value > most)
      refuse(in + " '" + key + "'",
             "is " + std::to_string(value) + ", and at most " + std::to_string(most) + " is allowed");
    return value;
  }
  const std::string& text(const json& object, const char* key, const std::string& in) const {
    return field(object, key, json::value_t::string, in).get_ref<const std::string&>();
  }
  std::vector<std::int64_t> counts(const json& object, const char* key, const std::string& in) const {
    const auto& array = field(object, key, json::value_t::array, in);
    if (array.size() > SafetensorsFile::kMaxDimensions) refuse(in + " '" + key + "'", "has too many dimensions");
    std::vector<std::int64_t> values;
    for (const auto& value : array) values.push_back(count_of(value, in + " '" + key + "'"));
    return values;
  }

  std::map<std::string, FileDigest> files(const json& array) const {
    std::map<std::string, FileDigest> files;
    for (const auto& entry : array) {
      const auto& name = text(entry, "name", "a file");
      const std::string what = "file " + printable(name);
      check_file_name(name, what);
      FileDigest digest;
      digest.bytes = static_cast<std::uint64_t>(count(entry, "bytes", what));
      digest.xxh3 = hex(entry, "xxh3", what, 16);
      digest.chunks =
          hex(entry, "chunks", what, (digest.bytes + FileDigest::kChunkBytes - 1) / FileDigest::kChunkBytes * 16);
      if (digest.xxh3 != FileDigest::of_chunks(digest.chunks))
        refuse(what + " 'xxh3'", "is not the hash of its chunks' hashes");
      if (!files.emplace(name, std::move(digest)).second) refuse(what, "appears twice");
    }
    return files;
  }

  ManifestTensor tensor(const json& entry, const std::map<std::string, FileDigest>& files, bool whole) const {
    ManifestTensor tensor;
    tensor.name = text(entry, "name", "a tensor");
    const std::string what = "tensor " + printable(tensor.name);
    if (const auto why = refused_name(tensor.name); !why.empty()) refuse(what + " 'name'", why);
    const auto dtype = scalar_type_of(text(entry, "dtype", what));
    if (!dtype) refuse(what + " 'dtype'", "is one that Troupe does not know");
    tensor.dtype = *dtype;
    tensor.shape = counts(entry, "shape", what);
    const auto& slices = field(entry, "slices", json::value_t::array, what);
    if (slices.size() > Manifest::kMaxSlices) refuse(what, "has too many slices");
    for (const auto& slice : slices) tensor.slices.push_back(this->slice(slice, what, files));
    if (const auto why = wrong_slices(tensor, whole); !why.empty()) refuse(what, why);
    return tensor;
  }

 private:
  std::int64_t count_of(const json& value, const std::string& what) const {
    if (!value.is_number_unsigned() ||
        value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      refuse(what, "is not a whole number from 0 on");
    }
    return value.get<std::int64_t>();
  }

  std::string hex(const json& object, const char* key, const std::string& in, std::uint64_t digits) const {
    const auto& value = text(object, key, in);
    if (value.size() != digits || value.find_first_not_of("0123456789abcdef") != value.npos)
      refuse(in + " '" + key + "'", "does not hold the " + std::to_string(digits) + " digits it should");
    return value;
  }

  // A name becomes a path here, so it must not lead out of the folder.
  void check_file_name(const std::string& name, const std::string& what) const {
    const bool plain = std::all_of(name.begin(), name.end(), [](unsigned char c) {
      return (c < 0x80 && std::isalnum(c)) || c == '-' || c == '_' || c == '.';
    });
    if (name.empty() || name.size() > 255 || name.front() == '.' || !plain)
      refuse(what, "has a name that no file of a checkpoint has");
  }

  TensorSlice slice(const json& entry, const std::string& what, const std::map<std::string, FileDigest>& files) const {
    TensorSlice slice{text(entry, "file", what), counts(entry, "offsets", what), counts(entry, "shape", what)};
    if (!files.contains(slice.file))
      refuse(what, "lies in " + printable(slice.file) + ", which the manifest does not list");
    if (!slice.file.ends_with(".safetensors"))
      refuse(what, "lies in " + printable(slice.file) + ", which is not a safetensors file");
    return slice;
  }

  const std::string& where_;
};

void check_hash(std::string_view text, const std::string& where) {
  const auto refuse = [&where](const std::string& why) { throw Error(ErrorCode::bad_data, where, why); };
  if (const auto what = foreign_format(std::as_bytes(std::span(text.data(), text.size()))); !what.empty())
    throw Error(ErrorCode::bad_data, where, what, foreign_format_remedy(what));
  if (text.empty()) refuse("is empty");
  const auto tail = text.size() > kTailBytes ? text.substr(text.size() - kTailBytes) : std::string_view{};
  if (!tail.starts_with(kBeforeHash) || !tail.ends_with(kAfterHash))
    refuse("does not end with its own hash: it was cut short, or Troupe did not write it");
  const auto body = text.substr(0, text.size() - kTailBytes);
  const auto stated = tail.substr(kBeforeHash.size(), 16);
  const auto actual = xxh3_text(xxh3(body));
  if (stated != actual) refuse("was changed: it states XXH3 " + printable(stated) + " and has " + actual);
}

}  // namespace

std::string wrong_slices(const ManifestTensor& tensor, bool whole) {
  const auto overlap = [](const TensorSlice& a, const TensorSlice& b) {
    for (std::size_t i = 0; i < a.shape.size(); ++i) {
      if (a.offsets[i] >= b.offsets[i] + b.shape[i] || b.offsets[i] >= a.offsets[i] + a.shape[i]) return false;
    }
    return true;
  };
  const auto bytes = c10::elementSize(tensor.dtype);
  const auto numel = checked_numel(tensor.shape, bytes);
  if (!numel) return "'shape' has more bytes than 63 bits can count";
  std::int64_t covered = 0;
  for (const auto& slice : tensor.slices) {
    if (slice.shape.size() != tensor.shape.size() || slice.offsets.size() != tensor.shape.size())
      return "has a slice of another number of dimensions";
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      if (slice.offsets[i] > tensor.shape[i] || slice.shape[i] > tensor.shape[i] - slice.offsets[i])
        return "has a slice that reaches out of it";
    }
    covered += checked_numel(slice.shape, bytes).value_or(0);  // each at most `numel`, at most kMaxSlices of them...
    if (covered > *numel) break;                               // ... and the sum never far above it
  }
  if (tensor.slices.empty() || (covered != *numel && (whole || covered > *numel)))
    return "is not covered by its slices: they have " + std::to_string(covered) + " of " + std::to_string(*numel) +
           " elements";
  for (std::size_t i = 0; i < tensor.slices.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (tensor.slices[i].file == tensor.slices[j].file)
        return "has two slices in " + printable(tensor.slices[i].file);
      if (overlap(tensor.slices[i], tensor.slices[j])) return "has two slices that overlap";
    }
  }
  return {};
}

std::string rank_tensor_file(std::int64_t rank) { return numbered(rank, "safetensors"); }
std::string rank_state_file(std::int64_t rank) { return numbered(rank, "json"); }

std::string rank_part_file(std::int64_t rank) { return numbered(rank, "part"); }

Manifest merge_manifests(std::vector<Manifest> parts, const std::string& where) {
  if (parts.empty()) throw Error(ErrorCode::bad_data, where, "it has no parts");
  auto merged = std::move(parts.front());
  std::map<std::string, std::size_t> known;
  for (std::size_t i = 0; i < merged.tensors.size(); ++i) known.emplace(merged.tensors[i].name, i);
  for (std::size_t rank = 1; rank < parts.size(); ++rank) {
    auto& part = parts[rank];
    const auto refuse = [&](const std::string& why) {
      throw Error(ErrorCode::bad_data, where, "the part of rank " + std::to_string(rank) + " " + why);
    };
    if (part.step != merged.step || part.ranks != merged.ranks || part.attempt != merged.attempt)
      refuse("is from a different save than rank 0's");
    for (auto& [name, digest] : part.files) {
      if (!merged.files.emplace(name, std::move(digest)).second)
        refuse("lists " + printable(name) + ", which another rank's part also lists");
    }
    for (auto& tensor : part.tensors) {
      const auto [found, is_new] = known.emplace(tensor.name, merged.tensors.size());
      if (is_new) {
        merged.tensors.push_back(std::move(tensor));
        continue;
      }
      auto& whole = merged.tensors[found->second];
      if (whole.dtype != tensor.dtype || whole.shape != tensor.shape)
        refuse("has a different dtype or shape for tensor " + printable(tensor.name) + " than an earlier rank");
      for (auto& slice : tensor.slices) whole.slices.push_back(std::move(slice));
    }
  }
  std::sort(merged.tensors.begin(), merged.tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return merged;
}

// What from_text would refuse for its size is not written.
void Manifest::check_readable(const std::string& text) const {
  const auto refuse = [](const std::string& why) {
    throw Error(ErrorCode::usage, kWriting, why, "save with fewer ranks, or a model of fewer and larger parameters");
  };
  for (const auto& tensor : tensors) {
    if (tensor.slices.size() > kMaxSlices) {
      refuse("tensor " + printable(tensor.name) + " lies in " + std::to_string(tensor.slices.size()) +
             " slices, and readers accept " + std::to_string(kMaxSlices));
    }
  }
  if (step > kMostSteps || epoch > step + 1 || step_in_epoch > kMostSteps) {
    throw Error(ErrorCode::usage, kWriting,
                "step " + std::to_string(step) + " of epoch " + std::to_string(epoch) +
                    ": readers accept 2^40 steps and no epoch without a step");
  }
  if (text.size() > kMaxBytes) {
    refuse("it would have " + std::to_string(text.size() >> 20) + " MiB, and readers accept " +
           std::to_string(kMaxBytes >> 20));
  }
  // A key takes five bytes at least, a value two: what is small enough need not be read.
  if (text.size() / 5 <= kLimits.keys && text.size() / 2 <= kLimits.values) return;
  try {
    parse_bounded_json(text, kWriting, kLimits);
  } catch (const Error& error) {
    refuse("it would have " + error.report().cause);
  }
}

std::string Manifest::to_text(Kind kind) const {
  std::vector<ordered_json> file_entries, tensor_entries;
  for (const auto& [name, digest] : files)
    file_entries.push_back({{"name", name}, {"bytes", digest.bytes}, {"xxh3", digest.xxh3}, {"chunks", digest.chunks}});
  for (const auto& tensor : tensors) {
    auto slices = ordered_json::array();
    for (const auto& slice : tensor.slices)
      slices.push_back({{"file", slice.file}, {"offsets", slice.offsets}, {"shape", slice.shape}});
    tensor_entries.push_back({{"name", tensor.name},
                              {"dtype", safetensors_dtype(tensor.dtype).value()},
                              {"shape", tensor.shape},
                              {"slices", slices}});
  }
  std::string text = "{\n";
  auto add = [&text](const char* key, const std::string& value) {
    text += (text.size() > 2 ? ",\n  \"" : "  \"") + std::string(key) + "\": " + value;
  };
  try {
    add("format", ordered_json(kind == Kind::whole ? kFormat : kPartFormat).dump());
    add("format_version", std::to_string(kFormatVersion));
    add("step", std::to_string(step));
    add("epoch", std::to_string(epoch));
    add("step_in_epoch", std::to_string(step_in_epoch));
    add("ranks", std::to_string(ranks));
    add("attempt", ordered_json(attempt).dump());
    add("metadata", ordered_json(metadata).dump());
    add("chunk_bytes", std::to_string(FileDigest::kChunkBytes));
    add("files", lines(file_entries));
    add("tensors", lines(tensor_entries));
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorCode::usage, kWriting, "a name or a metadata value is not valid UTF-8");
  }
  const auto hash = xxh3_text(xxh3(text));
  text.append(kBeforeHash).append(hash).append(kAfterHash);
  check_readable(text);
  return text;
}

Manifest Manifest::from_text(std::string_view text, const std::string& where, Kind kind) {
  check_hash(text, where);
  const auto root = parse_bounded_json(text, where, kLimits);
  const Reader reader(where);
  const std::string in = "manifest:";
  const bool whole = kind == Kind::whole;
  if (reader.text(root, "format", in) != (whole ? kFormat : kPartFormat))
    reader.refuse(in, "is not that of a Troupe checkpoint");
  if (const auto version = reader.count(root, "format_version", in); version != kFormatVersion) {
    throw Error(ErrorCode::bad_data, where,
                "format version " + std::to_string(version) + ", this program reads " + std::to_string(kFormatVersion),
                "read it with the Troupe that wrote it, or a newer one");
  }
  if (reader.count(root, "chunk_bytes", in) != static_cast<std::int64_t>(FileDigest::kChunkBytes))
    reader.refuse(in, "hashes chunks of another length");
  Manifest manifest;
  manifest.step = reader.count(root, "step", in, kMostSteps);
  // An epoch that is over has had a step.
  manifest.epoch = reader.count(root, "epoch", in, manifest.step + 1);
  manifest.step_in_epoch = reader.count(root, "step_in_epoch", in, kMostSteps);
  manifest.ranks = reader.count(root, "ranks", in);
  manifest.attempt = reader.text(root, "attempt", in);
  if (manifest.ranks > static_cast<std::int64_t>(kMaxRanks))
    reader.refuse(in, "names " + std::to_string(manifest.ranks) + " ranks");
  for (const auto& [key, value] : reader.field(root, "metadata", json::value_t::object, in).items()) {
    if (!value.is_string())
      reader.refuse("manifest: 'metadata'", "holds something that is not a string: " + printable(key));
    manifest.metadata.emplace(key, value.get_ref<const std::string&>());
  }
  check_state_texts(manifest.metadata, where, in + " 'metadata'");
  manifest.files = reader.files(reader.field(root, "files", json::value_t::array, in));
  for (std::int64_t rank = 0; whole && rank < manifest.ranks; ++rank) {
    if (!manifest.files.contains(rank_state_file(rank))) reader.refuse(in, "does not list " + rank_state_file(rank));
  }
  std::set<std::string_view> names;
  const auto& tensors = reader.field(root, "tensors", json::value_t::array, in);
  manifest.tensors.reserve(tensors.size());
  for (const auto& entry : tensors) {
    manifest.tensors.push_back(reader.tensor(entry, manifest.files, whole));
    if (!names.insert(manifest.tensors.back().name).second)
      reader.refuse("tensor " + printable(manifest.tensors.back().name), "appears twice");
  }
  return manifest;
}

}  // namespace troupe
