#include "tensor_io/checkpoint/safetensors.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <limits>

#include "tensor_io/base/error.hpp"
#include "tensor_io/files/bounded_json.hpp"

namespace troupe {

namespace {

constexpr std::pair<at::ScalarType, std::string_view> kDtypes[] = {
    {at::kDouble, "F64"},
    {at::kFloat, "F32"},
    {at::kHalf, "F16"},
    {at::kBFloat16, "BF16"},
    {at::kLong, "I64"},
    {at::kInt, "I32"},
    {at::kShort, "I16"},
    {at::kChar, "I8"},
    {at::kByte, "U8"},
    {at::kBool, "BOOL"},
    {at::kUInt64, "U64"},
    {at::kUInt32, "U32"},
    {at::kUInt16, "U16"},
    {at::kComplexFloat, "C64"},
    {at::kFloat8_e4m3fn, "F8_E4M3"},
    {at::kFloat8_e5m2, "F8_E5M2"},
    {at::kFloat8_e8m0fnu, "F8_E8M0"},
};

// Turns one entry of the header into values that are in range; `entry.begin` still counts from the first tensor.
class EntryParser {
 public:
  EntryParser(const BoundedFile& file, const std::string& name, std::uint64_t data_bytes)
      : file_(file), name_(name), data_bytes_(data_bytes) {}

  SafetensorsEntry parse(const nlohmann::json& fields) const {
    SafetensorsEntry entry;
    entry.name = name_;
    if (const auto why = refused_name(name_); !why.empty()) refuse("name", why);
    if (!fields.is_object()) refuse("entry", "is not an object");
    for (const auto& [key, value] : fields.items()) {
      if (key != "dtype" && key != "shape" && key != "data_offsets") refuse(key, "is not a field of the format");
    }
    entry.dtype = parse_dtype(fields);
    entry.shape = parse_shape(fields);
    const auto element_bytes = c10::elementSize(entry.dtype);
    const auto numel = checked_numel(entry.shape, element_bytes);
    if (!numel) refuse("shape", "has more bytes than 63 bits can count");
    const auto [begin, end] = parse_offsets(fields);
    entry.begin = begin;
    entry.bytes = static_cast<std::uint64_t>(*numel) * element_bytes;
    if (end - begin != entry.bytes) {
      refuse("data_offsets",
             "span " + std::to_string(end - begin) + " bytes, dtype and shape need " + std::to_string(entry.bytes));
    }
    return entry;
  }

 private:
  [[noreturn]] void refuse(const std::string& field, const std::string& why) const {
    file_.refuse("tensor " + printable(name_) + ": " + printable(field) + " " + why);
  }

  const nlohmann::json& field(const nlohmann::json& fields, const char* key) const {
    const auto found = fields.find(key);
    if (found == fields.end()) refuse(key, "is missing");
    return *found;
  }

  at::ScalarType parse_dtype(const nlohmann::json& fields) const {
    const auto& value = field(fields, "dtype");
    if (!value.is_string()) refuse("dtype", "is not a string");
    const auto dtype = scalar_type_of(value.get_ref<const std::string&>());
    if (!dtype)
      refuse("dtype", "is " + printable(value.get_ref<const std::string&>()) + ", which Troupe does not know");
    return *dtype;
  }

  std::vector<std::int64_t> parse_shape(const nlohmann::json& fields) const {
    const auto& value = field(fields, "shape");
    if (!value.is_array()) refuse("shape", "is not an array");
    if (value.size() > SafetensorsFile::kMaxDimensions)
      refuse("shape", "has " + std::to_string(value.size()) + " dimensions");
    std::vector<std::int64_t> shape;
    for (const auto& dimension : value) shape.push_back(static_cast<std::int64_t>(parse_count("shape", dimension)));
    return shape;
  }

  std::pair<std::uint64_t, std::uint64_t> parse_offsets(const nlohmann::json& fields) const {
    const auto& value = field(fields, "data_offsets");
    if (!value.is_array() || value.size() != 2) refuse("data_offsets", "is not a pair");
    const auto begin = parse_count("data_offsets", value[0]), end = parse_count("data_offsets", value[1]);
    if (begin > end)
      refuse("data_offsets", "ends at " + std::to_string(end) + ", before it begins at " + std::to_string(begin));
    if (end > data_bytes_)
      refuse("data_offsets", "ends at " + std::to_string(end) + ", the file's data at " + std::to_string(data_bytes_));
    return {begin, end};
  }

  std::uint64_t parse_count(const char* key, const nlohmann::json& value) const {
    if (!value.is_number_unsigned()) refuse(key, "holds something that is not a whole number from 0 on");
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      refuse(key, "holds " + std::to_string(number) + ", which is too large");
    return number;
  }

  const BoundedFile& file_;
  const std::string& name_;
  std::uint64_t data_bytes_;
};

std::map<std::string, std::string> parse_metadata(const BoundedFile& file, const nlohmann::json& object) {
  if (!object.is_object()) file.refuse("'__metadata__' is not an object");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : object.items()) {
    if (!value.is_string()) file.refuse("'__metadata__': the value of " + printable(key) + " is not a string");
    metadata.emplace(key, value.get_ref<const std::string&>());
  }
  return metadata;
}

bool is_text(char c) { return (c >= 0x20 && c < 0x7f) || c == '\n' || c == '\r' || c == '\t'; }

std::string read_head(const BoundedFile& file) {
  if (const auto what = foreign_format(file); !what.empty()) file.refuse(what, foreign_format_remedy(what));
  if (file.bytes() < 8) file.refuse("has " + std::to_string(file.bytes()) + " bytes, too few for a safetensors file");
  std::array<std::byte, 8> start{};
  file.read_at(0, start);
  if (std::all_of(start.begin(), start.end(), [](std::byte b) { return is_text(static_cast<char>(b)); }))
    file.refuse(
        "is text, not a safetensors file: it begins with " + printable({reinterpret_cast<char*>(start.data()), 8}),
        "open it: it may be a page that says why a download failed");
  std::uint64_t header_bytes = 0;
  for (std::size_t i = 8; i-- > 0;) header_bytes = header_bytes << 8 | static_cast<std::uint64_t>(start[i]);
  if (header_bytes > SafetensorsFile::kMaxHeaderBytes) {
    file.refuse("offset 0: a header of " + std::to_string(header_bytes) + " bytes, more than the " +
                std::to_string(SafetensorsFile::kMaxHeaderBytes) + " allowed");
  }
  if (header_bytes > file.bytes() - 8) {
    file.refuse(
        "offset 0: a header of " + std::to_string(header_bytes) + " bytes in a file of " + std::to_string(file.bytes()),
        "it was cut short, or is not a safetensors file");
  }
  std::string head(static_cast<std::size_t>(8 + header_bytes), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(head)));
  if (head.size() == 8 || head[8] != '{') file.refuse("offset 8: the header is not a JSON object");
  return head;
}

// Sorted by offset, the ranges must follow each other from the first byte of data to the end of the file.
void check_tiling(const BoundedFile& file, const std::vector<SafetensorsEntry>& entries, std::uint64_t data_bytes) {
  std::uint64_t end = 0;
  for (const auto& entry : entries) {
    if (entry.begin != end) {
      file.refuse("tensor " + printable(entry.name) + ": 'data_offsets' begins at " + std::to_string(entry.begin) +
                  ", the tensor before ends at " + std::to_string(end) + (entry.begin < end ? " (overlap)" : " (gap)"));
    }
    end += entry.bytes;
  }
  if (end != data_bytes)
    file.refuse(std::to_string(data_bytes - end) + " bytes after the last tensor belong to no tensor");
}

}  // namespace

std::optional<std::string_view> safetensors_dtype(at::ScalarType dtype) noexcept {
  for (const auto& [known, name] : kDtypes) {
    if (known == dtype) return name;
  }
  return std::nullopt;
}

std::optional<at::ScalarType> scalar_type_of(std::string_view safetensors_dtype) noexcept {
  for (const auto& [known, name] : kDtypes) {
    if (name == safetensors_dtype) return known;
  }
  return std::nullopt;
}

std::optional<std::int64_t> checked_numel(std::span<const std::int64_t> shape, std::size_t element_bytes) noexcept {
  // A dimension of 0 counts as 1 here: the strides that LibTorch computes must stay in range, too.
  std::int64_t product = static_cast<std::int64_t>(element_bytes);
  bool empty = false;
  for (const auto dimension : shape) {
    if (dimension < 0 || __builtin_mul_overflow(product, std::max<std::int64_t>(dimension, 1), &product))
      return std::nullopt;
    empty = empty || dimension == 0;
  }
  return empty ? 0 : product / static_cast<std::int64_t>(element_bytes);
}

at::Tensor empty_tensor(at::IntArrayRef shape, at::ScalarType dtype, const std::string& operation) {
  try {
    return at::empty(shape, at::TensorOptions().dtype(dtype));
  } catch (const std::exception&) {
    const auto numel = checked_numel(std::span(shape.data(), shape.size()), c10::elementSize(dtype)).value_or(0);
    throw Error(
        ErrorCode::unavailable, operation,
        "no memory for " + std::to_string(static_cast<std::size_t>(numel) * c10::elementSize(dtype)) + " bytes");
  }
}

std::string refused_name(std::string_view name) {
  if (name.empty()) return "is empty";
  if (name.size() > SafetensorsFile::kMaxNameBytes)
    return "has " + std::to_string(name.size()) + " bytes, more than the " +
           std::to_string(SafetensorsFile::kMaxNameBytes) + " allowed";
  if (name == "__metadata__") return "is reserved";
  if (std::any_of(name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }))
    return "holds control characters";
  if (name.front() == '/' || name == ".." || name.starts_with("../") || name.find("/../") != name.npos ||
      name.ends_with("/.."))
    return "looks like a path";
  return {};
}

SafetensorsFile::SafetensorsFile(BoundedFile file) : file_(std::move(file)), head_(read_head(file_)) {
  const std::uint64_t data_bytes = file_.bytes() - head_.size();
  // Of a large file nearly all of it is blanks, which the parser would look at one by one.
  const auto text = std::string_view(head_).substr(8, head_.find_last_not_of(' ') - 7);
  const auto header = parse_bounded_json(text, file_.operation() + ": " + file_.path(),
                                         {.depth = 3, .keys = 4 * (kMaxTensors + 1024)}, 8);
  if (header.size() > kMaxTensors + 1)
    file_.refuse("holds " + std::to_string(header.size()) + " tensors, more than the " + std::to_string(kMaxTensors) +
                 " allowed");
  for (const auto& [name, fields] : header.items()) {
    if (name == "__metadata__") {
      metadata_ = parse_metadata(file_, fields);
    } else {
      entries_.push_back(EntryParser(file_, name, data_bytes).parse(fields));
    }
  }
  // Tensors without elements share the offset of the one that follows, so they come first.
  std::stable_sort(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.bytes) < std::pair(b.begin, b.bytes);
  });
  check_tiling(file_, entries_, data_bytes);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    entries_[i].begin += head_.size();
    by_name_.emplace(entries_[i].name, i);
  }
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const noexcept {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

void SafetensorsFile::read_bytes(const SafetensorsEntry& entry, std::uint64_t offset, std::span<std::byte> out) const {
  if (offset > entry.bytes || out.size() > entry.bytes - offset) {
    throw Error(ErrorCode::usage, file_.operation() + ": " + file_.path(),
                "tensor " + printable(entry.name) + " has " + std::to_string(entry.bytes) + " bytes, asked for " +
                    std::to_string(out.size()) + " from " + std::to_string(offset) + " on");
  }
  file_.read_at(entry.begin + offset, out);
}

at::Tensor SafetensorsFile::read(const SafetensorsEntry& entry) const {
  auto tensor = empty_tensor(entry.shape, entry.dtype, file_.operation() + ": " + file_.path());
  const std::span bytes(static_cast<std::byte*>(tensor.mutable_data_ptr()), static_cast<std::size_t>(entry.bytes));
  read_bytes(entry, 0, bytes);
  if (entry.dtype == at::kBool) {  // a bool with another value than 0 and 1 is undefined behaviour
    const auto bad = std::find_if(bytes.begin(), bytes.end(), [](std::byte value) { return value > std::byte{1}; });
    if (bad != bytes.end()) {
      file_.refuse("tensor " + printable(entry.name) + ": offset " +
                   std::to_string(entry.begin + static_cast<std::uint64_t>(bad - bytes.begin())) +
                   " holds neither false nor true");
    }
  }
  return tensor;
}

NamedTensors load_safetensors(const std::string& path) {
  const SafetensorsFile file(path);
  NamedTensors tensors;
  for (const auto& entry : file.entries()) tensors.emplace_back(entry.name, file.read(entry));
  return tensors;
}

}  // namespace troupe
