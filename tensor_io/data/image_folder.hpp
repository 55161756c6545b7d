#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tensor_io/data/datasets.hpp"
#include "tensor_io/data/image_reader.hpp"

namespace troupe {

/// JPEG and PNG files in folders that are named after their classes, decoded on request: input (C, side, side) f32,
/// target a label, the class's place in the order of the names.
class ImageFolder final : public Dataset {
 public:
  struct File {
    std::string path;
    std::int64_t label = 0;
  };
  /// `folder`: the prefix of all paths, which may differ from rank to rank.
  ImageFolder(std::string name, const std::string& folder, std::vector<File> files, const ImageReader& reader);
  std::int64_t size() const override { return static_cast<std::int64_t>(files_.size()); }
  Example get(std::int64_t index, const SampleContext& context) const override;
  Batch get_batch(std::span<const std::int64_t> indices, const SampleContext& context) const override;
  std::uint64_t files_hash() const override {
    return files_hash_;
  }  ///< of names and labels: reading a million lengths takes too long
  std::string name() const override { return name_; }
  const std::vector<File>& files() const noexcept { return files_; }

 private:
  std::string name_;
  std::vector<File> files_;
  ImageReader reader_;
  std::uint64_t files_hash_ = 0;
};

/// `data_dir`/CLASS/…, of which every fifth file is held out, or parts by the names of file_names.hpp:
/// `data_dir`/train/CLASS/… with `val` held out, or `test` if there is no `val`. Classes, folders and files are in the
/// order of torchvision's ImageFolder; folders in a class's folder are searched too. Hidden files, and all but .jpg,
/// .jpeg and .png, are passed over. Throws Error(unavailable) for a missing folder. Throws Error(bad_data) for a class
/// without a picture or missing in train, two folders of one part, parts without train, and if most pictures are of
/// another format. Throws Error(usage) for more classes than num_classes.
TrainAndHeldOut read_image_folder(const DataOptions& options);

/// A picture's file, whole; links are followed. Throws Error(bad_data) beyond 256 MiB.
std::string read_image_file(const std::string& path);

}  // namespace troupe
