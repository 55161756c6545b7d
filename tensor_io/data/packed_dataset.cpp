#include "tensor_io/data/packed_dataset.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "tensor_io/base/error.hpp"
#include "tensor_io/data/data_line.hpp"
#include "tensor_io/files/bounded_json.hpp"
#include "tensor_io/files/file_layer.hpp"
#include "tensor_io/files/xxh3.hpp"

namespace troupe {
namespace {

constexpr const char* kReadingPacked = "reading packed data";
constexpr std::uint64_t kMostPackedIndexBytes = std::uint64_t{64} << 20;
constexpr std::int64_t kMostSamples = std::int64_t{1} << 40, kMostPasses = 1 << 20;
constexpr std::size_t kMostFiles = 100'000;
constexpr const char* kPackAgain = "pack it again: troupe pack";

struct PackedIndex {
  struct Shard {
    std::string name;
    bool held_out = false;
    std::int64_t samples = 0;
  };
  std::vector<PackedDataset::Field> fields;
  std::vector<Shard> shards;
  std::int64_t train = 0, held_out = 0, passes = 1;
};

// A field's name is one of a batch, a file's name one in this folder.
PackedIndex parse_packed_index(const std::string& text, const std::string& where) {
  const auto require = [&](bool holds, const std::string& what) {
    if (!holds) throw Error(ErrorCode::bad_data, where, what, kPackAgain);
  };
  return read_bounded_json(text, where, {}, [&](const nlohmann::json& json) {
    require(json.at("format") == 1, "the format is not 1, the one that this version of Troupe reads");
    PackedIndex index;
    index.train = json.at("train").get<std::int64_t>();
    index.held_out = json.at("held_out").get<std::int64_t>();
    index.passes = json.at("passes").get<std::int64_t>();
    require(index.train > 0 && index.held_out >= 0 && index.passes > 0, "there is no sample to train on");
    require(index.train < kMostSamples && index.held_out < kMostSamples && index.passes < kMostPasses,
            "it says that there are more samples than is possible");
    for (const auto& item : json.at("fields")) {
      PackedDataset::Field field;
      field.name = item.at("name").get<std::string>();
      const auto dtype = scalar_type_of(item.at("dtype").get<std::string>());
      field.sizes = item.at("shape").get<std::vector<std::int64_t>>();
      require(dtype.has_value(), "the field " + printable(field.name) + " has an unknown dtype");
      const auto numel = checked_numel(field.sizes, at::elementSize(*dtype));
      require(numel.has_value(), "a sample of the field " + printable(field.name) + " is too large");
      require(refused_name(field.name).empty() && std::none_of(index.fields.begin(), index.fields.end(),
                                                               [&](const auto& f) { return f.name == field.name; }),
              "a field has the name " + printable(field.name));
      field.dtype = *dtype;
      field.bytes = static_cast<std::size_t>(*numel) * at::elementSize(*dtype);
      index.fields.push_back(std::move(field));
    }
    require(!index.fields.empty(), "a sample has no fields");
    require(json.at("files").size() < kMostFiles, "there are too many files");
    for (const auto& item : json.at("files")) {
      PackedIndex::Shard shard;
      shard.name = item.at("name").get<std::string>();
      const auto part = item.at("part").get<std::string>();
      shard.held_out = part == "held_out";
      shard.samples = item.at("samples").get<std::int64_t>();
      require(part == "train" || part == "held_out", printable(shard.name) + " is of the part " + printable(part));
      require(!shard.name.empty() && shard.name.find('/') == std::string::npos && shard.name[0] != '.',
              "a file has the name " + printable(shard.name));
      require(shard.samples > 0 && shard.samples < kMostSamples,
              printable(shard.name) + " has " + std::to_string(shard.samples) + " samples");
      index.shards.push_back(std::move(shard));
    }
    return index;
  });
}

PackedDataset::File open_shard(const std::string& path, const std::vector<PackedDataset::Field>& fields,
                               std::int64_t first, std::int64_t samples) {
  PackedDataset::File opened{SafetensorsFile(BoundedFile(kReadingPacked, path)), {}, first, samples};
  for (const auto& field : fields) {
    const auto* entry = opened.file.find(field.name);
    if (entry == nullptr) opened.file.file().refuse("has no field " + printable(field.name), kPackAgain);
    auto wanted = field.sizes;
    wanted.insert(wanted.begin(), samples);
    if (entry->dtype != field.dtype || entry->shape != wanted) {
      opened.file.file().refuse("its field " + printable(field.name) + " is " + c10::toString(entry->dtype) + " " +
                                    c10::str(at::IntArrayRef(entry->shape)) + ", and packed.json says " +
                                    c10::toString(field.dtype) + " " + c10::str(at::IntArrayRef(wanted)),
                                kPackAgain);
    }
    opened.begins.push_back(entry->begin);
  }
  return opened;
}

std::shared_ptr<const Dataset> part_of(const std::string& folder, const PackedIndex& index, bool held_out,
                                       std::uint64_t hash) {
  const auto size = held_out ? index.held_out : index.train;
  const auto passes = held_out ? 1 : index.passes;
  if (size == 0) return nullptr;
  std::vector<PackedDataset::File> files;
  std::int64_t there = 0;
  for (const auto& shard : index.shards) {
    if (shard.held_out != held_out) continue;
    files.push_back(open_shard(folder + "/" + shard.name, index.fields, there, shard.samples));
    there += shard.samples;
  }
  if (there != size * passes) {
    throw Error(ErrorCode::bad_data, std::string(kReadingPacked) + ": " + folder + "/packed.json",
                "its files have " + std::to_string(there) + " samples, but it says " + std::to_string(size * passes),
                kPackAgain);
  }
  const auto shards = files.size();
  auto data = std::make_shared<PackedDataset>(index.fields, std::move(files), size, passes, hash);
  std::string fields;
  for (const auto& field : index.fields) fields += (fields.empty() ? "" : ", ") + field.name;
  data->set_description(held_out ? "packed apart"
                                 : "packed: " + fields + " in " + with_commas(static_cast<std::int64_t>(shards)) +
                                       (shards == 1 ? " file" : " files") +
                                       (passes == 1 ? "" : ", " + with_commas(passes) + " passes"));
  return data;
}

}  // namespace

PackedDataset::PackedDataset(std::vector<Field> fields, std::vector<File> files, std::int64_t size, std::int64_t passes,
                             std::uint64_t hash)
    : fields_(std::move(fields)), files_(std::move(files)), size_(size), passes_(passes), hash_(hash) {}

// One row of each field.
void PackedDataset::read(std::int64_t index, const SampleContext& context, std::span<at::Tensor> rows) const {
  if (index < 0 || index >= size_)
    throw Error(ErrorCode::usage, "packed", "there is no sample " + std::to_string(index));
  const auto number = context.epoch % passes_ * size_ + index;
  const auto file = std::prev(
      std::upper_bound(files_.begin(), files_.end(), number, [](auto n, const File& f) { return n < f.first; }));
  for (std::size_t f = 0; f < fields_.size(); ++f) {
    auto* bytes = static_cast<std::byte*>(rows[f].data_ptr());
    file->file.file().read_at(file->begins[f] + static_cast<std::uint64_t>(number - file->first) * fields_[f].bytes,
                              {bytes, fields_[f].bytes});
  }
}

Example PackedDataset::get(std::int64_t index, const SampleContext& context) const {
  std::vector<at::Tensor> rows;
  for (const auto& field : fields_) rows.push_back(at::empty(field.sizes, field.dtype));
  read(index, context, rows);
  Example example;
  for (std::size_t f = 0; f < fields_.size(); ++f) {
    const auto& name = fields_[f].name;
    if (name == "input") {
      example.input = rows[f];
    } else if (name == "target") {
      example.target = rows[f];
    } else {
      example.named.emplace_back(name, rows[f]);
    }
  }
  return example;
}

Batch PackedDataset::get_batch(std::span<const std::int64_t> indices, const SampleContext& context) const {
  NamedTensors fields;
  for (const auto& field : fields_) {
    auto sizes = field.sizes;
    sizes.insert(sizes.begin(), static_cast<std::int64_t>(indices.size()));
    fields.emplace_back(field.name, at::empty(sizes, field.dtype));
  }
  Batch batch;
  batch.index = at::empty({static_cast<std::int64_t>(indices.size())}, at::kLong);
  std::vector<at::Tensor> rows(fields_.size());
  for (std::size_t i = 0; i < indices.size(); ++i) {
    for (std::size_t f = 0; f < fields_.size(); ++f) rows[f] = fields[f].second[static_cast<std::int64_t>(i)];
    read(indices[i], context, rows);
    batch.index.data_ptr<std::int64_t>()[i] = indices[i];
  }
  batch.set_fields(fields);
  return batch;
}

TrainAndHeldOut read_packed(const DataOptions& options) {
  const auto path = options.data_dir + "/packed.json";
  if (!is_there(path, "data_dir")) {
    throw Error(ErrorCode::unavailable, "data_dir", "there is no " + path, "set it to a folder that troupe pack wrote");
  }
  const BoundedFile file(kReadingPacked, path);
  const auto text = file.read_all(kMostPackedIndexBytes);
  const auto index = parse_packed_index(text, file.operation() + ": " + path);
  const auto hash = xxh3(text);  // it has the files' digests
  return {part_of(options.data_dir, index, false, hash), part_of(options.data_dir, index, true, hash)};
}

}  // namespace troupe
