#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "tensor_io/data/data_options.hpp"
#include "tensor_io/data/dataset.hpp"

namespace troupe {

/// A part of a picture, in pixels.
struct CropBox {
  std::int64_t top = 0, left = 0, height = 0, width = 0;
  friend bool operator==(const CropBox&, const CropBox&) = default;
};

/// The largest square in the middle.
CropBox middle_square(std::int64_t height, std::int64_t width);

/// A part with 8 to 100 % of the area and sides 3:4 to 4:3, a function of `random` (Szegedy et al., "Going Deeper with
/// Convolutions", 2015; torchvision's RandomResizedCrop). The largest square in the middle if ten draws do not fit.
CropBox random_crop(std::int64_t height, std::int64_t width, std::uint64_t random);

/// A batch of these samples, each of `shape`; `read_sample` writes one's floats and returns its label.
Batch batch_of_images(std::span<const std::int64_t> indices, std::array<std::int64_t, 3> shape,
                      const std::function<std::int64_t(std::int64_t index, float* out)>& read_sample);

/// Turns a picture file into a model's input: decoded, cut (the middle square, or with `augment` a random part, flipped
/// half of the time, by (seed, epoch, sample)), resized to `side` (bilinear, antialiased), normalised by ImageNet's
/// mean and standard deviation (one channel: 0.449 and 0.226, their means).
class ImageReader {
 public:
  /// Throws Error(usage): image_size 0, channels other than 1 and 3.
  ImageReader(const DataOptions& options, bool augment);
  /// The shape of read()'s result: (channels, side, side).
  std::array<std::int64_t, 3> shape() const noexcept { return {channels_, side_, side_}; }
  /// Throws Error(bad_data) with `where`. Any thread.
  void read(std::span<const std::byte> file, const std::string& where, std::int64_t sample,
            const SampleContext& context, float* out) const;

 private:
  std::int64_t channels_, side_;
  bool augment_;
};

}  // namespace troupe
