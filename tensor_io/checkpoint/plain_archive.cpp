#include "tensor_io/checkpoint/plain_archive.hpp"

#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/import_read.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include <algorithm>
#include <array>

#include "tensor_io/base/error.hpp"
#include "tensor_io/files/bounded_file.hpp"

namespace troupe {
namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{64} << 30;
constexpr const char* kOperation = "reading a file of torch.save";
constexpr const char* kRemedies =
    "save it again in Python with torch.save(dict(state_dict), path), or with safetensors.torch.save_file(state_dict, "
    "path)";

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

// What a file claims about itself may point outside of it. torch::jit::pickle_load's own reader believes it, and reads
// beyond the end.
class ArchiveBytes : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit ArchiveBytes(std::string bytes) : bytes_(std::move(bytes)) {}
  std::size_t size() const override { return bytes_.size(); }
  std::size_t read(std::uint64_t begin, void* into, std::size_t count, const char*) const override {
    begin = std::min<std::uint64_t>(begin, bytes_.size());
    count = std::min<std::size_t>(count, bytes_.size() - begin);  // who asked for more sees that it is less
    std::copy_n(bytes_.data() + begin, count, static_cast<char*>(into));
    return count;
  }

 private:
  std::string bytes_;
};

void flatten(const c10::IValue& value, const std::string& name, NamedTensors& tensors,
             std::vector<std::string>* skipped) {
  const auto inner = [&](const std::string& key) { return name.empty() ? key : name + "." + key; };
  if (value.isTensor()) {
    tensors.emplace_back(name, value.toTensor());
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      flatten(entry.value(), inner(entry.key().isString() ? entry.key().toStringRef() : c10::str(entry.key())), tensors,
              skipped);
    }
  } else if (value.isList() || value.isTuple()) {
    std::size_t i = 0;
    const auto each = [&](const c10::IValue& element) {
      flatten(element, inner(std::to_string(i++)), tensors, skipped);
    };
    if (value.isTuple()) {
      for (const auto& element : value.toTupleRef().elements()) each(element);
    } else {
      for (const auto& element : value.toListRef()) each(element);
    }
  } else if (skipped) {
    skipped->push_back(name);
  }
}

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
  const BoundedFile file(kOperation, path);
  std::array<std::byte, 4> magic{};
  if (file.bytes() < 64) file.refuse("has " + std::to_string(file.bytes()) + " bytes: it is no archive of torch.save");
  file.read_at(0, magic);
  if (magic != std::array{std::byte{'P'}, std::byte{'K'}, std::byte{3}, std::byte{4}})
    file.refuse("is no zip archive: Python's torch.save before version 1.6 wrote it, or something else did", kRemedies);
  c10::IValue value;
  auto bytes = std::make_shared<ArchiveBytes>(file.read_all(kMaxBytes));
  try {
    caffe2::serialize::PyTorchStreamReader reader(std::move(bytes));
    value = torch::jit::readArchiveAndTensors("data", "", "", std::nullopt, std::nullopt, std::nullopt, reader);
  } catch (const std::exception& error) {
    const std::string what = error.what();
    const auto first_line = what.substr(0, what.find('\n'));
    if (what.find("OrderedDict") != what.npos || what.find("class") != what.npos || what.find("GLOBAL") != what.npos ||
        what.find("type") != what.npos) {
      file.refuse("holds an OrderedDict or another Python class (" + first_line + ")", kRemedies);
    }
    file.refuse("cannot be read: " + first_line, kRemedies);
  }
  if (!value.isGenericDict()) file.refuse("holds a " + value.tagKind() + ", not a dict of tensors", kRemedies);
  NamedTensors tensors;
  flatten(value, "", tensors, skipped);
  if (tensors.empty()) file.refuse("holds no tensor", kRemedies);
  return tensors;
}

}  // namespace troupe
