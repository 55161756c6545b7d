#include "tensor_io/data/image_folder.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <fcntl.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "tensor_io/base/error.hpp"
#include "tensor_io/data/files_hash.hpp"
#include "tensor_io/files/bounded_file.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostPictureBytes = 256 << 20;
constexpr std::size_t kEveryHeldOut = 5;
constexpr const char* kPictures = "reading pictures";

bool is_picture(const fs::path& path) {
  auto extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return extension == ".jpg" || extension == ".jpeg" || extension == ".png";
}

[[noreturn]] void cannot_list(const std::string& folder, const std::error_code& error) {
  throw Error(ErrorCode::unavailable, std::string(kPictures) + ": " + folder, error.message(),
              "set data_dir to a folder with a folder for each class");
}

std::vector<std::string> class_names(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(folder, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    const auto name = entry->path().filename().string();
    std::error_code unknown;  // what cannot be looked at is no class
    if (fs::is_directory(entry->path(), unknown) && !name.starts_with(".")) names.push_back(name);
  }
  if (error) cannot_list(folder, error);
  if (names.empty())
    throw Error(ErrorCode::bad_data, std::string(kPictures) + ": " + folder, "it holds no folders",
                "make a folder for each class in it");
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<ImageFolder::File> pictures_of(const std::string& folder,
                                           const std::map<std::string, std::int64_t>& labels) {
  std::vector<ImageFolder::File> files;
  for (const auto& name : class_names(folder)) {
    const auto known = labels.find(name);
    if (known == labels.end()) {
      throw Error(ErrorCode::bad_data, std::string(kPictures) + ": " + folder + "/" + name,
                  "class " + printable(name) + " is not in train/", "give both parts the same classes");
    }
    const auto first = files.size();
    std::error_code error;
    fs::recursive_directory_iterator entry(folder + "/" + name, fs::directory_options::follow_directory_symlink, error),
        end;
    for (; !error && entry != end; entry.increment(error)) {
      if (entry.depth() > 16)
        throw Error(ErrorCode::bad_data, entry->path().string(),
                    "folders in folders more than 16 deep (a loop of links?)",
                    "remove the link, or lay the pictures in fewer folders");
      std::error_code unknown;
      if (is_picture(entry->path()) && !fs::is_directory(entry->path(), unknown))
        files.push_back({entry->path().string(), known->second});
    }
    if (error) cannot_list(folder + "/" + name, error);
    if (files.size() == first) {
      throw Error(ErrorCode::bad_data, std::string(kPictures) + ": " + folder + "/" + name,
                  "it holds no .jpg, .jpeg or .png file", "remove the folder, or put pictures there");
    }
    std::sort(files.begin() + static_cast<std::ptrdiff_t>(first), files.end(),
              [](const auto& a, const auto& b) { return a.path < b.path; });
  }
  return files;
}

}  // namespace

std::string read_image_file(const std::string& path) {
  std::error_code error;
  const auto resolved = fs::canonical(path, error);  // data sets are often folders of links
  const BoundedFile file(kPictures, AT_FDCWD, error ? path : resolved.string(), path);
  return file.read_all(kMostPictureBytes);
}

ImageFolder::ImageFolder(std::string name, const std::string& folder, std::vector<File> files,
                         const ImageReader& reader)
    : name_(std::move(name)), files_(std::move(files)), reader_(reader) {
  FilesHash hash;
  for (const auto& file : files_) hash.add(file.path.substr(std::min(folder.size(), file.path.size())), file.label);
  files_hash_ = hash.value();
}

Example ImageFolder::get(std::int64_t index, const SampleContext& context) const {
  auto batch = get_batch(std::span(&index, 1), context);
  return {batch.input[0], batch.target[0]};
}

Batch ImageFolder::get_batch(std::span<const std::int64_t> indices, const SampleContext& context) const {
  return reader_.make_batch(indices, [&](std::int64_t index, float* out) {
    const auto& file = files_.at(static_cast<std::size_t>(index));
    const auto content = read_image_file(file.path);
    reader_.read(std::as_bytes(std::span(content)), file.path, index, context, out);
    return file.label;
  });
}

TrainAndHeldOut read_image_folder(const DataOptions& options) {
  std::error_code unknown;
  const bool split = fs::is_directory(options.data_dir + "/train", unknown);
  const auto folder = split ? options.data_dir + "/train" : options.data_dir;
  std::map<std::string, std::int64_t> labels;
  for (const auto& name : class_names(folder)) labels.emplace(name, static_cast<std::int64_t>(labels.size()));
  if (static_cast<std::int64_t>(labels.size()) > options.num_classes) {
    throw Error(ErrorCode::usage, "num_classes",
                folder + " has " + std::to_string(labels.size()) + " classes, num_classes is " +
                    std::to_string(options.num_classes),
                "set num_classes " + std::to_string(labels.size()));
  }
  auto train = pictures_of(folder, labels);
  std::vector<ImageFolder::File> held_out;
  if (split) {
    if (fs::is_directory(options.data_dir + "/val", unknown)) held_out = pictures_of(options.data_dir + "/val", labels);
  } else {
    std::vector<ImageFolder::File> rest;
    for (std::size_t i = 0; i < train.size(); ++i)
      (i % kEveryHeldOut == kEveryHeldOut - 1 ? held_out : rest).push_back(train[i]);
    train = std::move(rest);
  }
  const auto make = [&](std::vector<ImageFolder::File> files, bool augment) -> std::shared_ptr<const Dataset> {
    if (files.empty()) return nullptr;
    return std::make_shared<ImageFolder>("image_folder", options.data_dir, std::move(files),
                                         ImageReader(options, augment));
  };
  return {make(std::move(train), options.augment), make(std::move(held_out), false)};
}

}  // namespace troupe
