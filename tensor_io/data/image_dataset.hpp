#pragma once
#include <memory>
#include <string>
#include <vector>

#include "tensor_io/data/dataset.hpp"

namespace troupe {

/// Turns stored bytes into a model's input.
struct ImageTransform {
  float scale = 1.0f / 255;     ///< byte -> [0, 1]
  std::vector<float> mean{};    ///< per channel, subtracted after scaling; empty: 0
  std::vector<float> stddev{};  ///< per channel, divided by; empty: 1
  bool augment = false;         ///< shift by up to `padding` pixels (zeros come in) and flip, by (seed, epoch, sample)
  bool flip = true;             ///< part of augment; off if left and right matter (digits)
  std::int64_t padding = 4;
};

/// Images in memory as bytes, (N, C, H, W); a batch is one pass that gathers, augments and normalises into f32. Targets
/// are i64 labels.
class ImageDataset final : public Dataset {
 public:
  /// images (N, C, H, W) u8, labels (N,) i64. Throws Error(bad_data) naming a label outside [0, classes).
  ImageDataset(std::string name, const at::Tensor& images, const at::Tensor& labels, std::int64_t classes,
               ImageTransform transform);

  std::int64_t size() const override { return images_.size(0); }
  Example get(std::int64_t index, const SampleContext& context) const override;
  Batch get_batch(std::span<const std::int64_t> indices, const SampleContext& context) const override;
  bool quick(std::int64_t samples) const override;
  std::string name() const override { return name_; }

 private:
  struct Plane {
    float factor = 1, offset = 0;  // byte * factor + offset is the value
  };
  void write_sample(const std::uint8_t* image, float* out, std::int64_t index, const SampleContext& context) const;

  std::string name_;
  at::Tensor images_;  // (N, C, H, W) u8, contiguous
  at::Tensor labels_;  // (N,) i64
  ImageTransform transform_;
  std::int64_t height_, width_;
  std::vector<Plane> planes_;  // by channel
};

/// labels (N,) i64. Throws Error(bad_data) that names `where` and the first label outside [0, classes).
void require_labels(const std::string& where, const at::Tensor& labels, std::int64_t classes);

/// Images (N, C, H, W) u8 resized to a square of `image_size` (bilinear, rounded) and, if they have one channel,
/// repeated to `channels`.
at::Tensor fit_images(const at::Tensor& images, std::int64_t channels, std::int64_t image_size);

}  // namespace troupe
