#include "tensor_io/checkpoint/plain_archive.hpp"

#include <ATen/ATen.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>

#include "tensor_io/checkpoint/pickle.hpp"
#include "tensor_io/checkpoint/safetensors.hpp"
#include "tensor_io/files/zip_archive.hpp"

namespace troupe {
namespace {

constexpr std::uint64_t kMaxPickleBytes = std::uint64_t{64} << 20;
constexpr int kMaxDepth = 64;
constexpr const char* kOperation = "reading a file of torch.save";
constexpr const char* kRemedies =
    "save it again in Python with torch.save(model.state_dict(), path), or with "
    "safetensors.torch.save_file(model.state_dict(), path)";

std::string pickled(const c10::IValue& value, std::vector<at::Tensor>& storages) {
  std::string text;
  // Without type tags: torch.load's safe default knows plain dicts only.
  torch::jit::Pickler pickler([&](const char* data, std::size_t bytes) { text.append(data, bytes); }, nullptr, nullptr,
                              nullptr, nullptr,
                              /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(value);
  pickler.stop();
  storages = pickler.tensorData();
  return text;
}

constexpr std::pair<std::string_view, at::ScalarType> kStorages[] = {
    {"torch\nDoubleStorage", at::kDouble},
    {"torch\nFloatStorage", at::kFloat},
    {"torch\nHalfStorage", at::kHalf},
    {"torch\nBFloat16Storage", at::kBFloat16},
    {"torch\nLongStorage", at::kLong},
    {"torch\nIntStorage", at::kInt},
    {"torch\nShortStorage", at::kShort},
    {"torch\nCharStorage", at::kChar},
    {"torch\nByteStorage", at::kByte},
    {"torch\nBoolStorage", at::kBool},
    {"torch\nComplexFloatStorage", at::kComplexFloat},
    {"torch\nComplexDoubleStorage", at::kComplexDouble},
};
// Of those whose storage has no type: the last argument is the dtype.
constexpr std::pair<std::string_view, at::ScalarType> kUntyped[] = {
    {"torch\nuint16", at::kUInt16},           {"torch\nuint32", at::kUInt32},
    {"torch\nuint64", at::kUInt64},           {"torch\nfloat8_e4m3fn", at::kFloat8_e4m3fn},
    {"torch\nfloat8_e5m2", at::kFloat8_e5m2}, {"torch\nfloat8_e8m0fnu", at::kFloat8_e8m0fnu},
};
constexpr std::string_view kTensor = "torch._utils\n_rebuild_tensor_v2";
constexpr std::string_view kUntypedTensor = "torch._utils\n_rebuild_tensor_v3";
// Values of Python that are no tensors, and may stand beside them.
constexpr std::string_view kValues[] = {
    "torch\nSize",          "torch\ndevice",    "torch.serialization\n_get_layout", "_codecs\nencode",
    "__builtin__\ncomplex", "__builtin__\nset", "__builtin__\nbytearray",           "collections\nCounter"};
constexpr std::string_view kParameter = "torch._utils\n_rebuild_parameter";

std::string dotted(std::string_view name) {
  std::string text(name);
  std::replace(text.begin(), text.end(), '\n', '.');
  return printable(text);
}

// A tensor as the file describes it, checked against the file's bytes before any of them is read.
struct TensorClaim {
  std::string storage;
  at::ScalarType dtype = at::kFloat;
  std::int64_t elements = 0;  // of the storage
  std::int64_t offset = 0;
  std::vector<std::int64_t> sizes, strides;

  /// Why it cannot be taken; empty if every element that it reaches lies in its storage, and this in the file.
  std::string wrong(std::uint64_t storage_bytes) const {
    const auto element_bytes = c10::elementSize(dtype);
    if (elements < 0 || static_cast<std::uint64_t>(elements) > storage_bytes / element_bytes)
      return "has a storage of " + std::to_string(elements) + " elements, and the file " +
             std::to_string(storage_bytes) + " bytes for it";
    if (sizes.size() != strides.size() || sizes.size() > SafetensorsFile::kMaxDimensions)
      return "has " + std::to_string(sizes.size()) + " sizes and " + std::to_string(strides.size()) + " strides";
    if (std::any_of(sizes.begin(), sizes.end(), [](auto size) { return size < 0; })) return "has a negative size";
    if (std::any_of(strides.begin(), strides.end(), [](auto stride) { return stride < 0; }))
      return "has a negative stride";
    const auto numel = checked_numel(sizes, element_bytes);
    if (!numel) return "has more bytes than 63 bits can count";
    if (*numel > elements)
      return "has " + std::to_string(*numel) + " elements, and its storage " + std::to_string(elements) +
             " (save the clone() of an expanded tensor)";
    std::int64_t last = offset;
    for (std::size_t d = 0; *numel > 0 && d < sizes.size(); ++d) {
      std::int64_t step = 0;
      if (__builtin_mul_overflow(sizes[d] - 1, strides[d], &step) || __builtin_add_overflow(last, step, &last))
        return "reaches more elements than 63 bits can count";
    }
    if (offset < 0 || (*numel > 0 ? last >= elements : offset > elements))
      return "reaches from element " + std::to_string(offset) + " to " + std::to_string(last) + " of a storage of " +
             std::to_string(elements);
    return {};
  }
};

std::vector<std::int64_t> numbers(const std::vector<PickleValue*>& values) {
  std::vector<std::int64_t> numbers;
  numbers.reserve(values.size());
  for (const auto* value : values) numbers.push_back(value->number);
  return numbers;
}

bool are(const std::vector<PickleValue*>& values, std::initializer_list<PickleKind> kinds) {
  return values.size() >= kinds.size() &&
         std::equal(kinds.begin(), kinds.end(), values.begin(),
                    [](PickleKind kind, const auto* value) { return value->is(kind); });
}

bool are_numbers(const PickleValue& tuple) {
  return std::all_of(tuple.items.begin(), tuple.items.end(),
                     [](const auto* value) { return value->is(PickleKind::number); });
}

class PlainArchive {
 public:
  PlainArchive(BoundedFile file, std::vector<std::string>* skipped) : zip_(std::move(file)), skipped_(skipped) {}

  NamedTensors load() {
    for (const auto& [name, entry] : zip_.entries()) {
      if (name.ends_with("/data.pkl") && name.find('/') == name.rfind('/'))
        folder_ = name.substr(0, name.find('/') + 1);
    }
    const auto* description = find("data.pkl");
    if (description == nullptr) zip_.damaged("it holds no data.pkl");
    if (description->bytes > kMaxPickleBytes)
      zip_.damaged("a data.pkl of " + std::to_string(description->bytes) + " bytes");
    if (const auto* order = find("byteorder"); order != nullptr && (order->bytes != 6 || text_of(*order) != "little"))
      zip_.file().refuse("is not little-endian", kRemedies);
    const Pickle pickle(text_of(*description),
                        [this](const std::string& why) { zip_.file().refuse("cannot be read: " + why, kRemedies); });
    if (pickle.root().is(PickleKind::call)) refuse_call("holds", pickle.root());
    if (!pickle.root().is(PickleKind::dict)) zip_.file().refuse("holds no dict of tensors", kRemedies);
    flatten(pickle.root(), "", 0);
    if (tensors_.empty()) zip_.file().refuse("holds no tensor", kRemedies);
    return std::move(tensors_);
  }

 private:
  const ZipArchive::Entry* find(const std::string& name) const { return zip_.find(folder_ + name); }
  std::string text_of(const ZipArchive::Entry& entry) const {
    std::string text(static_cast<std::size_t>(entry.bytes), '\0');
    zip_.read(entry, std::as_writable_bytes(std::span(text)));
    return text;
  }

  [[noreturn]] void refuse(const std::string& name, const std::string& why) const {
    zip_.file().refuse("tensor " + printable(name) + " " + why, kRemedies);
  }
  [[noreturn]] void refuse_call(const std::string& holds, const PickleValue& call) const {
    zip_.file().refuse(holds + " a Python class (" + dotted(call.items[0]->text) + ")", kRemedies);
  }

  void flatten(const PickleValue& value, const std::string& name, int depth) {
    if (depth > kMaxDepth) refuse(name, "is nested deeper than " + std::to_string(kMaxDepth));
    if (++visits_ > Pickle::kMaxValues)
      zip_.file().refuse("holds more than " + std::to_string(Pickle::kMaxValues) + " values");
    const auto why = depth > 0 ? refused_name(name) : std::string();
    if (!why.empty()) zip_.file().refuse("the name " + printable(name) + " " + why, kRemedies);
    const auto inner = [&](const std::string& key) { return name.empty() ? key : name + "." + key; };
    if (value.is(PickleKind::dict)) {
      for (std::size_t i = 0; i < value.items.size(); i += 2) {
        const auto& key = *value.items[i];
        if (!key.is(PickleKind::text) && !key.is(PickleKind::number))
          zip_.file().refuse("a key in " + printable(name) + " is neither a text nor a number", kRemedies);
        flatten(*value.items[i + 1],
                inner(key.is(PickleKind::text) ? std::string(key.text) : std::to_string(key.number)), depth + 1);
      }
    } else if (value.is(PickleKind::list) || value.is(PickleKind::tuple)) {
      for (std::size_t i = 0; i < value.items.size(); ++i)
        flatten(*value.items[i], inner(std::to_string(i)), depth + 1);
    } else if (value.is(PickleKind::call)) {
      const auto function = value.items[0]->text;
      const auto& arguments = value.items[1]->items;
      if (function == kTensor || function == kUntypedTensor) {
        add(name, arguments, function == kUntypedTensor);
      } else if (function == kParameter && !arguments.empty()) {
        flatten(*arguments[0], name, depth + 1);
      } else if (std::find(std::begin(kValues), std::end(kValues), function) != std::end(kValues)) {
        skip(name);
      } else if (function.starts_with("torch._utils\n")) {
        refuse(name, "is sparse, quantized or of another type that Troupe does not know (" + dotted(function) + ")");
      } else {
        refuse_call(printable(name) + " holds", value);
      }
    } else if ((value.is(PickleKind::name) && !is_constant(value.text)) || value.is(PickleKind::stored)) {
      refuse(name, "is a class or a storage");
    } else {
      skip(name);
    }
  }

  // torch.float16
  static bool is_constant(std::string_view name) {
    return name.starts_with("torch\n") && name.size() > 6 && name[6] >= 'a' && name[6] <= 'z';
  }
  void skip(const std::string& name) {
    if (skipped_ != nullptr) skipped_->push_back(name);
  }

  // `types`: the known ones, by the name of `typed`.
  template <std::size_t N>
  at::ScalarType known_type(const std::string& name, const std::pair<std::string_view, at::ScalarType> (&types)[N],
                            const PickleValue& typed) const {
    const auto* type =
        std::find_if(std::begin(types), std::end(types), [&](const auto& known) { return known.first == typed.text; });
    if (type == std::end(types)) refuse(name, "has a type that Troupe does not know, " + dotted(typed.text));
    return type->second;
  }

  void add(const std::string& name, const std::vector<PickleValue*>& arguments, bool untyped) {
    if (!are(arguments, {PickleKind::stored, PickleKind::number, PickleKind::tuple, PickleKind::tuple}) ||
        !are_numbers(*arguments[2]) || !are_numbers(*arguments[3]) ||
        (untyped && (arguments.size() < 7 || !arguments[6]->is(PickleKind::name))))
      refuse(name, "is not stored the way torch.save stores it");
    const auto& place = arguments[0]->items[0]->items;
    if (!are(place, {PickleKind::text, PickleKind::name, PickleKind::text, PickleKind::text, PickleKind::number}))
      refuse(name, "has no storage that torch.save describes");
    const auto dtype = untyped ? known_type(name, kUntyped, *arguments[6]) : known_type(name, kStorages, *place[1]);
    const auto element_bytes = untyped ? static_cast<std::int64_t>(c10::elementSize(dtype)) : 1;
    const TensorClaim claim{std::string(place[2]->text),      dtype,
                            place[4]->number / element_bytes, arguments[1]->number,
                            numbers(arguments[2]->items),     numbers(arguments[3]->items)};
    const auto* entry = find("data/" + claim.storage);
    if (const auto why = claim.wrong(entry == nullptr ? 0 : entry->bytes); !why.empty()) refuse(name, why);
    if (!names_.insert(name).second) refuse(name, "appears twice");
    const std::size_t more = untyped ? 7 : 6;
    tensors_.emplace_back(
        name, seen_through(name, read(name, claim, entry), arguments.size() > more ? arguments[more] : nullptr));
  }

  // A view may stand for the conjugate or the negative of what is stored.
  at::Tensor seen_through(const std::string& name, at::Tensor tensor, const PickleValue* metadata) const {
    if (metadata == nullptr || metadata->is(PickleKind::none)) return tensor;
    if (!metadata->is(PickleKind::dict)) refuse(name, "is not stored the way torch.save stores it");
    for (std::size_t i = 0; i < metadata->items.size(); i += 2) {
      const auto& [key, value] = std::tie(*metadata->items[i], *metadata->items[i + 1]);
      if (value.is(PickleKind::number) && value.number == 0) continue;
      if (key.text == "conj" && tensor.is_complex()) {
        tensor = at::_conj(tensor).resolve_conj();
      } else if (key.text == "neg" && tensor.is_floating_point() && tensor.element_size() > 1) {
        tensor = at::_neg_view(tensor).resolve_neg();
      } else {
        refuse(name, "has something that Troupe does not know, " + printable(key.text));
      }
    }
    return tensor;
  }

  // Tensors that share a storage in the file share it here.
  at::Tensor read(const std::string& name, const TensorClaim& claim, const ZipArchive::Entry* entry) {
    auto& storage = storages_[claim.storage];
    if (!storage.defined()) {
      const auto bytes = entry == nullptr ? 0 : static_cast<std::int64_t>(entry->bytes);
      storage = empty_tensor({bytes}, at::kByte, std::string(kOperation) + ": " + zip_.file().path());
      if (bytes > 0) zip_.read(*entry, {static_cast<std::byte*>(storage.mutable_data_ptr()), entry->bytes});
    }
    const auto bytes = claim.elements * static_cast<std::int64_t>(c10::elementSize(claim.dtype));
    if (claim.dtype == at::kBool && bools_.insert(claim.storage).second && storage.gt(1).any().item<bool>())
      refuse(name, "holds values that are neither false nor true");
    return storage.narrow(0, 0, bytes).view(claim.dtype).as_strided(claim.sizes, claim.strides, claim.offset);
  }

  const ZipArchive zip_;
  std::vector<std::string>* skipped_;
  std::string folder_;
  NamedTensors tensors_;
  std::set<std::string> names_;
  std::map<std::string, at::Tensor> storages_;
  std::set<std::string> bools_;  // storages that hold nothing but 0 and 1
  std::size_t visits_ = 0;
};

}  // namespace

void save_plain_archive(const std::string& path, const NamedTensors& tensors, FileLayer& files) {
  c10::Dict<std::string, at::Tensor> dict;
  // A view would take its whole storage along.
  for (const auto& [name, tensor] : tensors) dict.insert(name, tensor.detach().cpu().contiguous().clone());
  std::vector<at::Tensor> storages;
  const auto pickle = pickled(dict, storages);
  replace_file(path, files, [&](DurableFile& file) {
    caffe2::serialize::PyTorchStreamWriter writer([&](const void* data, std::size_t bytes) {
      file.append({static_cast<const std::byte*>(data), bytes});
      return bytes;
    });
    writer.writeRecord("data.pkl", pickle.data(), pickle.size());
    writer.writeRecord("byteorder", "little", 6);
    for (std::size_t i = 0; i < storages.size(); ++i) {
      writer.writeRecord("data/" + std::to_string(i), storages[i].storage().data(), storages[i].storage().nbytes());
    }
    writer.writeEndOfFile();
  });
}

NamedTensors load_plain_archive(const std::string& path, std::vector<std::string>* skipped) {
  BoundedFile file(kOperation, path, Links::followed);
  const auto what = foreign_format(file);
  if (what.ends_with("not the file")) file.refuse(what, foreign_format_remedy(what));
  std::array<std::byte, 4> magic{};
  if (file.bytes() < 64)
    file.refuse("has " + std::to_string(file.bytes()) + " bytes" + (what.empty() ? "" : " and " + what) +
                ": it is not an archive of torch.save");
  file.read_at(0, magic);
  if (magic != std::array{std::byte{'P'}, std::byte{'K'}, std::byte{3}, std::byte{4}})
    file.refuse("is not a zip archive: torch.save of PyTorch before 1.6 wrote it, or something else did", kRemedies);
  return PlainArchive(std::move(file), skipped).load();
}

}  // namespace troupe
