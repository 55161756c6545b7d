#include "tensor_io/data/datasets.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "tensor_io/base/error.hpp"
#include "tensor_io/base/random_seed.hpp"
#include "tensor_io/data/bad_samples.hpp"
#include "tensor_io/data/data_line.hpp"
#include "tensor_io/data/image_dataset.hpp"
#include "tensor_io/data/image_folder.hpp"
#include "tensor_io/data/packed_dataset.hpp"
#include "tensor_io/data/text_table.hpp"
#include "tensor_io/data/webdataset.hpp"
#include "tensor_io/files/file_layer.hpp"

namespace troupe {
namespace {

constexpr std::size_t kQuickBytes = 1 << 20;  // of a batch of tensors: some 50 us, as long as waking a thread takes

bool held_out(std::int64_t row) { return row % 5 == 4; }

std::pair<at::Tensor, at::Tensor> split_rows(std::int64_t rows) {
  std::vector<std::int64_t> train, rest;
  for (std::int64_t i = 0; i < rows; ++i) (held_out(i) ? rest : train).push_back(i);
  return {at::tensor(train, at::kLong), at::tensor(rest, at::kLong)};
}

constexpr const char* kEveryFifth = "every 5th";

std::string described(const std::string& path, const NumberTable& table, const std::string& numbers) {
  return std::filesystem::path(path).filename().string() + ", " + with_commas(table.rows) + " rows of " +
         with_commas(table.columns - 1) + " " + numbers + " and a label, " +
         (table.header.empty() ? "no header" : "a header") +
         (table.comments == 0 ? "" : ", " + with_commas(table.comments) + " lines of comment passed over");
}

// A cell that counts something, from 0 to below `end`.
void require_whole(const std::string& path, const NumberTable& table, std::int64_t row, std::int64_t column,
                   std::int64_t end, const std::string& what, const std::string& remedy) {
  const double value = table.at(row, column);
  if (value == std::floor(value) && value >= 0 && value < static_cast<double>(end)) return;
  std::ostringstream cause;
  cause << table.column_name(column) << ": " << value << " is not a " << what;
  throw Error(ErrorCode::bad_data, path + ":" + std::to_string(table.lines[static_cast<std::size_t>(row)]), cause.str(),
              remedy);
}

// The last column.
at::Tensor labels_of(const std::string& path, const NumberTable& table, std::int64_t classes) {
  for (std::int64_t row = 0; row < table.rows; ++row)
    require_whole(path, table, row, table.columns - 1, classes,
                  "label from 0 to " + std::to_string(classes - 1) + " (num_classes " + std::to_string(classes) + ")",
                  "set num_classes, or fix the line");
  return at::tensor(table.values, at::kDouble)
      .view({table.rows, table.columns})
      .select(1, table.columns - 1)
      .to(at::kLong);
}

std::string shipped_digits() {
  for (const char* path : {TROUPE_SOURCE_DATA "/digits.csv.gz", TROUPE_INSTALLED_DATA "/digits.csv.gz",
                           "/usr/share/troupe/digits.csv.gz"}) {
    if (std::error_code unknown; std::filesystem::exists(path, unknown)) return path;
  }
  return "data/digits.csv.gz";
}

/// `name` in the folder, or that as .gz. `elsewhere`: folders below it in which other tools lay the files;
/// `other_form`: the name of the same data in a form that is not read, and what to do about it.
std::string existing(const std::string& folder, const std::string& name,
                     std::initializer_list<const char*> elsewhere = {},
                     const std::pair<std::string, std::string>& other_form = {}) {
  const auto there = [&](const std::string& in) {
    for (const auto& candidate : {in + "/" + name, in + "/" + name + ".gz"}) {
      if (is_there(candidate, "data_dir")) return candidate;
    }
    return std::string();
  };
  if (auto path = there(folder); !path.empty()) return path;
  std::string remedy = "set data_dir to the folder that holds the files";
  if (!other_form.first.empty() && is_there(folder + "/" + other_form.first, "data_dir")) remedy = other_form.second;
  for (const char* below : elsewhere) {
    if (!there(folder + "/" + below).empty()) remedy = "set data_dir to " + folder + "/" + below;
  }
  throw Error(ErrorCode::unavailable, "data_dir", "there is neither " + folder + "/" + name + " nor " + name + ".gz",
              remedy);
}

TrainAndHeldOut images(const std::string& name, const DataOptions& options, std::array<at::Tensor, 4> parts,
                       ImageTransform transform, const std::string& understood, const std::string& held_out) {
  auto make = [&](const at::Tensor& pixels, const at::Tensor& labels, bool augment, const std::string& description) {
    auto mine = transform;
    mine.augment = augment;
    auto made = std::make_shared<ImageDataset>(name, fit_images(pixels, options.in_channels, options.image_size),
                                               labels, options.num_classes, mine);
    made->set_description(description);
    return made;
  };
  return {make(parts[0], parts[1], options.augment, understood), make(parts[2], parts[3], false, held_out)};
}

std::pair<at::Tensor, at::Tensor> read_cifar_file(const std::string& path, std::int64_t classes) {
  const auto content = read_file(path);
  constexpr std::size_t record = 1 + 3 * 32 * 32;
  if (content.empty() || content.size() % record != 0) {
    throw Error(ErrorCode::bad_data, path,
                "its " + std::to_string(content.size()) + " bytes are not a whole number of records of 3073; record " +
                    std::to_string(content.size() / record) + " is cut off at offset " + std::to_string(content.size()),
                "download or copy it again");
  }
  const auto rows = static_cast<std::int64_t>(content.size() / record);
  const auto all =
      at::from_blob(const_cast<char*>(content.data()), {rows, static_cast<std::int64_t>(record)}, at::kByte);
  const auto labels = all.select(1, 0).to(at::kLong);
  require_labels(path, labels, classes);
  return {all.narrow(1, 1, 3072).reshape({rows, 3, 32, 32}).clone(), labels};
}

}  // namespace

at::Tensor read_idx(const std::string& path) {
  const auto content = read_file(path);
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(content[i])); };
  const auto word = [&](std::size_t i) { return byte(i) << 24 | byte(i + 1) << 16 | byte(i + 2) << 8 | byte(i + 3); };
  if (content.size() < 4)
    throw Error(ErrorCode::bad_data, path,
                "its " + std::to_string(content.size()) + " bytes are not an IDX header (offset 0, magic)",
                "download or copy it again");
  if (byte(0) != 0 || byte(1) != 0 || byte(2) != 8 || byte(3) < 1 || byte(3) > 4) {
    throw Error(
        ErrorCode::bad_data, path,
        "offset 0, magic: " + std::to_string(word(0)) + " is not an IDX file of unsigned bytes with 1 to 4 dimensions",
        "set data_dir to a folder with MNIST's own files");
  }
  const std::size_t dimensions = byte(3);
  if (content.size() < 4 + 4 * dimensions)
    throw Error(ErrorCode::bad_data, path, "offset 4, dimensions: the header is cut off", "download or copy it again");
  std::vector<std::int64_t> shape;
  std::uint64_t numel = 1;
  for (std::size_t d = 0; d < dimensions; ++d) {
    shape.push_back(word(4 + 4 * d));
    if (shape.back() != 0 && numel > (std::uint64_t{1} << 40) / static_cast<std::uint64_t>(shape.back())) {
      throw Error(ErrorCode::bad_data, path,
                  "offset " + std::to_string(4 + 4 * d) + ", dimension " + std::to_string(d) +
                      ": the sizes multiply to more than a terabyte",
                  "download or copy it again");
    }
    numel *= static_cast<std::uint64_t>(shape.back());
  }
  const std::size_t start = 4 + 4 * dimensions;
  if (content.size() - start != numel) {
    throw Error(ErrorCode::bad_data, path,
                "offset " + std::to_string(start) + ", data: the header promises " + std::to_string(numel) +
                    " bytes, there are " + std::to_string(content.size() - start),
                "download or copy it again");
  }
  return at::from_blob(const_cast<char*>(content.data() + start), shape, at::kByte).clone();
}

TrainAndHeldOut read_mnist(const DataOptions& options) {
  std::array<at::Tensor, 4> parts;
  const char* names[] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
                         "t10k-labels-idx1-ubyte"};
  for (std::size_t i = 0; i < 4; ++i) {
    const auto path = existing(options.data_dir, names[i], {"MNIST/raw", "FashionMNIST/raw", "KMNIST/raw", "raw"});
    const auto raw = read_idx(path);
    const bool labels = i % 2 == 1;
    if (raw.dim() != (labels ? 1 : 3))
      throw Error(
          ErrorCode::bad_data, path,
          "offset 3, dimensions: " + std::to_string(raw.dim()) + ", but " + (labels ? "1 is" : "3 are") + " expected",
          "set data_dir to a folder with MNIST's own files");
    parts[i] = labels ? raw.to(at::kLong) : raw.unsqueeze(1);
    if (raw.size(0) == 0)
      throw Error(ErrorCode::bad_data, path, "offset 4, dimension 0: it holds nothing", "download or copy it again");
    if (i == 2 && raw.sizes().slice(1) != parts[0].sizes().slice(2)) {
      throw Error(ErrorCode::bad_data, path,
                  "offset 8, dimensions 1 and 2: its pictures have " + std::to_string(raw.size(1)) + " x " +
                      std::to_string(raw.size(2)) + " pixels, those of " + names[0] + " " +
                      std::to_string(parts[0].size(2)) + " x " + std::to_string(parts[0].size(3)),
                  "use all four files of the same data set");
    }
    if (labels) require_labels(path, parts[i], options.num_classes);
    if (labels && parts[i].size(0) != parts[i - 1].size(0)) {
      throw Error(ErrorCode::bad_data, path,
                  std::to_string(parts[i].size(0)) + " labels for " + std::to_string(parts[i - 1].size(0)) + " images",
                  "use images and labels of the same data set");
    }
  }
  ImageTransform transform;
  transform.mean = {0.1307f};
  transform.stddev = {0.3081f};
  transform.flip = false;
  return images("mnist", options, parts, transform,
                "mnist, IDX files in " + options.data_dir + ", pictures of " + std::to_string(parts[0].size(2)) +
                    " x " + std::to_string(parts[0].size(3)),
                "the t10k files");
}

TrainAndHeldOut read_cifar10(const DataOptions& options) {
  std::vector<at::Tensor> pixels, labels;
  for (int i = 1; i <= 5; ++i) {
    auto [images_of_file, labels_of_file] =
        read_cifar_file(existing(options.data_dir, "data_batch_" + std::to_string(i) + ".bin", {"cifar-10-batches-bin"},
                                 {"data_batch_" + std::to_string(i),
                                  "that is the version for Python: use CIFAR-10's binary version, "
                                  "cifar-10-binary.tar.gz"}),
                        options.num_classes);
    pixels.push_back(images_of_file);
    labels.push_back(labels_of_file);
  }
  auto [test_pixels, test_labels] = read_cifar_file(existing(options.data_dir, "test_batch.bin"), options.num_classes);
  ImageTransform transform;
  transform.mean = {0.4914f, 0.4822f, 0.4465f};
  transform.stddev = {0.2470f, 0.2435f, 0.2616f};
  return images("cifar10", options, {at::cat(pixels), at::cat(labels), test_pixels, test_labels}, transform,
                "cifar10, 5 batches in " + options.data_dir + ", pictures of 32 x 32", "test_batch.bin");
}

TrainAndHeldOut read_digits(const DataOptions& options) {
  const auto path = options.data_dir.empty() ? shipped_digits() : options.data_dir;
  const auto table = parse_csv(path, read_file(path));
  if (table.columns != 65)
    throw Error(ErrorCode::bad_data, path,
                "it has " + std::to_string(table.columns) + " columns, 64 pixels and a label are expected",
                "leave data_dir empty for the file that ships with Troupe");
  for (std::int64_t row = 0; row < table.rows; ++row) {
    for (std::int64_t column = 0; column < 64; ++column)
      require_whole(path, table, row, column, 17, "pixel from 0 to 16",
                    "leave data_dir empty for the file that ships with Troupe");
  }
  const auto labels = labels_of(path, table, options.num_classes);
  const auto all = at::tensor(table.values, at::kDouble).view({table.rows, 65});
  const auto bytes = all.narrow(1, 0, 64).to(at::kByte).view({table.rows, 1, 8, 8});
  const auto [train, rest] = split_rows(table.rows);
  ImageTransform transform;
  transform.scale = 1.0f / 16;
  transform.mean = {0.3053f};
  transform.stddev = {0.3760f};
  transform.flip = false;
  transform.padding = 1;
  return images("digits", options,
                {bytes.index_select(0, train), labels.index_select(0, train), bytes.index_select(0, rest),
                 labels.index_select(0, rest)},
                transform, described(path, table, "pixels"), kEveryFifth);
}

TrainAndHeldOut read_csv(const DataOptions& options) {
  const auto table = parse_csv(options.data_dir, read_file(options.data_dir));
  if (table.columns < 2)
    throw Error(ErrorCode::bad_data, options.data_dir, "it has one column; features and a label are expected",
                "put the label after a comma, as the last column");
  const auto target = labels_of(options.data_dir, table, options.num_classes);
  const auto all = at::tensor(table.values, at::kDouble).view({table.rows, table.columns});
  const auto input = all.narrow(1, 0, table.columns - 1).to(at::kFloat);
  const auto [train, rest] = split_rows(table.rows);
  const auto make = [&](const at::Tensor& rows, const std::string& description) -> std::shared_ptr<const Dataset> {
    if (rows.numel() == 0) return nullptr;
    auto made = std::make_shared<TensorDataset>(input.index_select(0, rows), target.index_select(0, rows), "csv");
    made->set_description(description);
    return made;
  };
  return {make(train, described(options.data_dir, table, "numbers")), make(rest, kEveryFifth)};
}

SyntheticImages::SyntheticImages(const DataOptions& options, std::uint64_t seed, std::int64_t first, std::int64_t size)
    : options_(options), seed_(seed), first_(first), size_(size) {}

Example SyntheticImages::get(std::int64_t index, const SampleContext&) const {
  const auto sample = static_cast<std::uint64_t>(first_ + index);
  const auto label =
      static_cast<std::int64_t>(mix_seed(seed_, {sample, 1}) % static_cast<std::uint64_t>(options_.num_classes));
  const auto side = options_.image_size > 0 ? options_.image_size : 32;
  auto image = at::empty({options_.in_channels, side, side}, at::kFloat);
  auto* out = image.data_ptr<float>();
  const auto unit = [](std::uint64_t bits) { return static_cast<float>(bits >> 40) / static_cast<float>(1 << 24); };
  const float phase = 6.2832f * unit(mix_seed(seed_, {sample, 2}));
  std::uint64_t noise = mix_seed(seed_, {sample, 3});
  for (std::int64_t c = 0; c < options_.in_channels; ++c) {
    // A wave whose direction and length tell the class, wherever it starts.
    const auto pattern = mix_seed(seed_, {static_cast<std::uint64_t>(label), static_cast<std::uint64_t>(c), 4});
    const float angle = 6.2832f * unit(pattern), length = 2.0f + 4.0f * unit(pattern << 20);
    const float along_y = std::sin(angle) * length * 6.2832f / static_cast<float>(side),
                along_x = std::cos(angle) * length * 6.2832f / static_cast<float>(side);
    for (std::int64_t y = 0; y < side; ++y) {
      for (std::int64_t x = 0; x < side; ++x) {
        noise = noise * 6364136223846793005ull + 1442695040888963407ull;  // Knuth's linear congruential generator
        *out++ = std::sin(along_y * static_cast<float>(y) + along_x * static_cast<float>(x) + phase) +
                 2.0f * (unit(noise) - 0.5f);
      }
    }
  }
  return {image, at::scalar_tensor(label, at::kLong)};
}

TensorDataset::TensorDataset(at::Tensor input, at::Tensor target, std::string name)
    : input_(std::move(input)), target_(std::move(target)), name_(std::move(name)) {
  if (input_.size(0) != target_.size(0)) {
    throw Error(ErrorCode::usage, name_,
                std::to_string(input_.size(0)) + " inputs for " + std::to_string(target_.size(0)) + " targets",
                "give each row of the input its target");
  }
}

bool TensorDataset::quick(std::int64_t samples) const {
  const auto bytes = [&](const at::Tensor& rows) {
    return rows.nbytes() / static_cast<std::size_t>(std::max<std::int64_t>(1, rows.size(0)));
  };
  return static_cast<std::size_t>(samples) <= kQuickBytes / std::max<std::size_t>(1, bytes(input_) + bytes(target_));
}

Example TensorDataset::get(std::int64_t index, const SampleContext&) const { return {input_[index], target_[index]}; }

Batch TensorDataset::get_batch(std::span<const std::int64_t> indices, const SampleContext&) const {
  Batch batch;
  batch.index = at::tensor(at::ArrayRef<std::int64_t>(indices.data(), indices.size()), at::kLong);
  batch.input = input_.index_select(0, batch.index);
  batch.target = target_.index_select(0, batch.index);
  return batch;
}

// What a data set of files needs.
static const DataOptions& with_files(const DataOptions& options) {
  if (options.data_dir.empty()) {
    throw Error(ErrorCode::usage, "data_dir", "data set " + options.data + " is read from your files",
                "set data_dir to the file or folder that holds it");
  }
  return options;
}

#define TROUPE_DATASET(name, description, make) TrainAndHeldOut make(const DataOptions& options, std::uint64_t seed);
#include "tensor_io/data/shipped_datasets.inc"
#undef TROUPE_DATASET

TrainAndHeldOut make_synthetic(const DataOptions& options, std::uint64_t seed) {
  if (!options.data_dir.empty()) {
    throw Error(ErrorCode::usage, "data_dir", "it is '" + options.data_dir + "', and data set synthetic reads no files",
                "set data to the kind of your files, image_folder for instance, or leave data_dir out");
  }
  const auto held_out = std::max<std::int64_t>(1, options.synthetic_size / 10);
  const auto train = std::make_shared<SyntheticImages>(options, seed, 0, options.synthetic_size);
  train->set_description("synthetic, pictures made on the fly");
  return {train, std::make_shared<SyntheticImages>(options, seed, options.synthetic_size, held_out)};
}
TrainAndHeldOut make_digits(const DataOptions& options, std::uint64_t) { return read_digits(options); }
TrainAndHeldOut make_mnist(const DataOptions& options, std::uint64_t) { return read_mnist(with_files(options)); }
TrainAndHeldOut make_cifar10(const DataOptions& options, std::uint64_t) { return read_cifar10(with_files(options)); }
TrainAndHeldOut make_csv(const DataOptions& options, std::uint64_t) { return read_csv(with_files(options)); }
TrainAndHeldOut make_image_folder(const DataOptions& options, std::uint64_t) {
  return read_image_folder(with_files(options));
}
TrainAndHeldOut make_packed(const DataOptions& options, std::uint64_t) { return read_packed(with_files(options)); }

TrainAndHeldOut make_webdataset(const DataOptions& options, std::uint64_t) {
  return read_webdataset(with_files(options));
}
TrainAndHeldOut make_tokens(const DataOptions& options, std::uint64_t) {
  with_files(options);
  throw Error(ErrorCode::usage, "data", "this program learns from samples with a label, not from tokens",
              "use a language model (examples/gpt), which calls read_tokens");
}

static TrainAndHeldOut make_shipped(const DataOptions& options, std::uint64_t seed) {
  const auto& name = options.data;
  if (options.augment && (name == "synthetic" || name == "csv" || name == "packed" || name == "tokens")) {
    throw Error(ErrorCode::usage, "augment", "data set " + name + " does not crop and flip",
                std::string("set augment to false") + (name == "packed" ? ", or pack the data with --passes" : ""));
  }
#define TROUPE_DATASET(name, description, make) \
  if (options.data == (name)) return make(options, seed);
#include "tensor_io/data/shipped_datasets.inc"
#undef TROUPE_DATASET
  throw Error(ErrorCode::internal, "data", "data set " + options.data + " was registered without a factory");
}

TrainAndHeldOut make_datasets(const DataOptions& options, std::uint64_t seed) {
  const auto factory = detail::find_dataset(options.data);
  if (!factory) {
    throw Error(ErrorCode::usage, "data", "there is no data set '" + options.data + "'",
                "known: " + name_list(known_datasets()));
  }
  return skip_bad_samples(*factory ? (*factory)(options, seed) : make_shipped(options, seed), options);
}

}  // namespace troupe
