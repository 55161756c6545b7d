#include "tensor_io/data/image_folder.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "tensor_io/base/error.hpp"
#include "tensor_io/data/file_names.hpp"
#include "tensor_io/data/files_hash.hpp"
#include "tensor_io/files/bounded_file.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostPictureBytes = 256 << 20;
constexpr std::size_t kEveryHeldOut = 5;
constexpr const char* kPictures = "reading pictures";

bool is_picture(const fs::path& path) {
  const auto extension = in_small_letters(path.extension().string());
  return extension == ".jpg" || extension == ".jpeg" || extension == ".png";
}

// torchvision's ImageFolder reads the first six of them; none is decoded here.
std::int64_t other_pictures(const PassedOver& passed_over) {
  return passed_over.count(
      {".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif", ".heic", ".avif", ".jp2", ".jxl"});
}

[[noreturn]] void refuse_folder(const std::string& folder, const std::string& cause, const std::string& remedy) {
  throw Error(ErrorCode::bad_data, std::string(kPictures) + ": " + folder, cause, remedy);
}

[[noreturn]] void cannot_list(const std::string& folder, const std::error_code& error) {
  throw Error(ErrorCode::unavailable, std::string(kPictures) + ": " + folder, error.message(),
              "set data_dir to a folder with a folder for each class");
}

std::vector<std::string> folders_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(folder, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    const auto name = entry->path().filename().string();
    std::error_code unknown;  // what cannot be looked at is no class
    if (fs::is_directory(entry->path(), unknown) && !name.starts_with(".")) names.push_back(name);
  }
  if (error) cannot_list(folder, error);
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> class_names(const std::string& folder) {
  auto names = folders_in(folder);
  if (names.empty()) refuse_folder(folder, "it holds no folders", "make a folder for each class in it");
  return names;
}

/// Where the pictures to train on and to measure on lie.
struct PartFolders {
  std::string train, held_out;        // folders of classes; no held_out: every fifth file, unless `parts`
  bool parts = false;                 // train is one of data_dir's folders
  std::vector<std::string> not_read;  // folders beside them
};

/// The only one of these folders; empty if there is none.
std::string only_one(const std::string& data_dir, const std::vector<std::string>& names) {
  if (names.size() > 1)
    refuse_folder(data_dir, "it holds both " + names[0] + " and " + names[1] + ", which are names of the same part",
                  "rename or move one of them");
  return names.empty() ? "" : names.front();
}

PartFolders part_folders_of(const std::string& data_dir) {
  const auto names = class_names(data_dir);
  std::map<PartName, std::vector<std::string>> parts;
  for (const auto& name : names) parts[part_named(name)].push_back(name);
  // A folder train without folders in it is a class: pictures of trains.
  std::erase_if(parts[PartName::train], [&](const auto& name) { return folders_in(data_dir + "/" + name).empty(); });
  const auto train = only_one(data_dir, parts[PartName::train]);
  if (train.empty()) {
    if (std::all_of(names.begin(), names.end(), [](const auto& name) { return part_in_name(name) != PartName::none; }))
      refuse_folder(data_dir,
                    "its folders " + names.front() + (names.size() > 1 ? " and " + names.back() : std::string()) +
                        " have names of parts of a data set, not of classes",
                    "name them train and val, with a folder for each class in both");
    return {data_dir, "", false, {}};
  }
  auto held_out = only_one(data_dir, parts[PartName::validation]);
  if (held_out.empty()) held_out = only_one(data_dir, parts[PartName::test]);
  PartFolders layout{data_dir + "/" + train, held_out.empty() ? "" : data_dir + "/" + held_out, true, {}};
  for (const auto& name : names) {
    if (name != train && name != held_out) layout.not_read.push_back(name);
  }
  return layout;
}

struct Listing {
  std::vector<ImageFolder::File> files;
  PassedOver passed_over;
};

/// As torchvision's ImageFolder walks: folder by folder in the order of their paths, in each the files by name.
void list_class(const std::string& folder, std::int64_t label, Listing& listing) {
  std::vector<std::pair<std::string, std::string>> found;  // (folder, name)
  PassedOver passed_over;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, fs::directory_options::follow_directory_symlink, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    if (entry.depth() > 16)
      throw Error(ErrorCode::bad_data, entry->path().string(),
                  "folders in folders more than 16 deep (a loop of links?)",
                  "remove the link, or put the pictures in fewer nested folders");
    const auto& path = entry->path();
    const auto name = path.filename().string();
    std::error_code unknown;
    if (fs::is_directory(path, unknown)) {
      if (name.starts_with(".")) entry.disable_recursion_pending();
    } else if (is_picture(path) && !name.starts_with(".")) {
      found.emplace_back(path.parent_path().string(), name);
    } else {
      passed_over.add(name);
    }
  }
  if (error) cannot_list(folder, error);
  if (found.empty()) {
    refuse_folder(
        folder,
        "it holds no .jpg, .jpeg or .png file" + (passed_over.count() == 0 ? "" : "; " + passed_over.to_string()),
        "remove the folder, or put pictures there");
  }
  std::sort(found.begin(), found.end());
  for (const auto& [parent, name] : found) listing.files.push_back({parent + "/" + name, label});
  listing.passed_over.add_all(passed_over);
}

Listing pictures_of(const std::string& folder, const std::map<std::string, std::int64_t>& labels) {
  Listing listing;
  for (const auto& name : class_names(folder)) {
    const auto known = labels.find(name);
    if (known == labels.end())
      refuse_folder(folder + "/" + name, "class " + printable(name) + " is not in train/",
                    "give both parts the same classes");
    list_class(folder + "/" + name, known->second, listing);
  }
  return listing;
}

std::string counted(std::size_t number, const char* one, const char* many) {
  return std::to_string(number) + " " + (number == 1 ? one : many);
}

}  // namespace

std::string read_image_file(const std::string& path) {
  return BoundedFile(kPictures, path, Links::followed).read_all(kMostPictureBytes);  // often a folder of links
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
  return batch_of_images(indices, reader_.shape(), [&](std::int64_t index, float* out) {
    const auto& file = files_.at(static_cast<std::size_t>(index));
    const auto content = read_image_file(file.path);
    reader_.read(std::as_bytes(std::span(content)), file.path, index, context, out);
    return file.label;
  });
}

TrainAndHeldOut read_image_folder(const DataOptions& options) {
  const auto layout = part_folders_of(options.data_dir);
  std::map<std::string, std::int64_t> labels;
  for (const auto& name : class_names(layout.train)) labels.emplace(name, static_cast<std::int64_t>(labels.size()));
  if (static_cast<std::int64_t>(labels.size()) > options.num_classes) {
    throw Error(ErrorCode::usage, "num_classes",
                layout.train + " has " + std::to_string(labels.size()) + " classes, num_classes is " +
                    std::to_string(options.num_classes),
                "set num_classes " + std::to_string(labels.size()));
  }
  auto train = pictures_of(layout.train, labels);
  Listing held_out;
  if (!layout.held_out.empty()) held_out = pictures_of(layout.held_out, labels);
  if (!layout.parts) {
    std::vector<ImageFolder::File> rest;
    for (std::size_t i = 0; i < train.files.size(); ++i)
      (i % kEveryHeldOut == kEveryHeldOut - 1 ? held_out.files : rest).push_back(train.files[i]);
    train.files = std::move(rest);
  }
  auto passed_over = train.passed_over;
  passed_over.add_all(held_out.passed_over);
  const auto pictures = train.files.size() + held_out.files.size();
  if (other_pictures(passed_over) > static_cast<std::int64_t>(pictures))
    refuse_folder(options.data_dir,
                  "most of its pictures are neither .jpg, .jpeg nor .png: " + passed_over.to_string() + ", " +
                      std::to_string(pictures) + " read",
                  "convert them to JPEG or PNG");
  std::string text =
      "image_folder, " + counted(pictures, "picture", "pictures") + " in " + counted(labels.size(), "class", "classes");
  if (passed_over.count() > 0) text += "; " + passed_over.to_string();
  for (const auto& name : layout.not_read) text += "; folder " + name + " not read";
  const auto make = [&](std::vector<ImageFolder::File> files, bool augment,
                        const std::string& description) -> std::shared_ptr<const Dataset> {
    if (files.empty()) return nullptr;
    const auto made = std::make_shared<ImageFolder>("image_folder", options.data_dir, std::move(files),
                                                    ImageReader(options, augment));
    made->set_description(description);
    return made;
  };
  return {make(std::move(train.files), options.augment, text),
          make(std::move(held_out.files), false,
               layout.parts ? fs::path(layout.held_out).filename().string() : "every 5th")};
}

}  // namespace troupe
