#include "tensor_io/data/image_dataset.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/upsample_bilinear2d.h>

#include <algorithm>

#include "tensor_io/base/error.hpp"
#include "tensor_io/base/mix_seed.hpp"
#include "tensor_io/base/processor_clones.hpp"
#include "tensor_io/data/image_reader.hpp"

namespace troupe {
namespace {

constexpr std::int64_t kQuickNumel = 1 << 18;  // of a batch: some 50 us, as long as waking a thread takes

/// Bytes to floats. Compiled without fused multiply-adds (CMakeLists.txt): the same bits on every processor.
TROUPE_PROCESSOR_CLONES void normalise_bytes(const std::uint8_t* __restrict from, std::int64_t numel, float factor,
                                             float offset, float* __restrict to) {
  for (std::int64_t i = 0; i < numel; ++i) to[i] = static_cast<float>(from[i]) * factor + offset;
}

}  // namespace

void require_labels(const std::string& where, const at::Tensor& labels, std::int64_t classes) {
  const auto contiguous = labels.contiguous();
  const auto* label = contiguous.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < contiguous.size(0); ++i) {
    if (label[i] >= 0 && label[i] < classes) continue;
    throw Error(ErrorCode::bad_data, where,
                "sample " + std::to_string(i) + " has label " + std::to_string(label[i]) + ", num_classes is " +
                    std::to_string(classes),
                "set num_classes, or fix the file");
  }
}

ImageDataset::ImageDataset(std::string name, const at::Tensor& images, const at::Tensor& labels, std::int64_t classes,
                           ImageTransform transform)
    : name_(std::move(name)),
      images_(images.contiguous()),
      labels_(labels.contiguous()),
      transform_(std::move(transform)),
      height_(images.size(2)),
      width_(images.size(3)) {
  require_labels(name_, labels_, classes);
  const auto of_channel = [](const std::vector<float>& values, std::size_t c, float otherwise) {
    return values.empty() ? otherwise : values[c % values.size()];
  };
  for (std::size_t c = 0; c < static_cast<std::size_t>(images_.size(1)); ++c) {
    const float mean = of_channel(transform_.mean, c, 0), stddev = of_channel(transform_.stddev, c, 1);
    planes_.push_back({transform_.scale / stddev, -mean / stddev});
  }
}

void ImageDataset::write_sample(const std::uint8_t* image, float* out, std::int64_t index,
                                const SampleContext& context) const {
  const auto plane_numel = height_ * width_;
  if (!transform_.augment) {
    for (std::size_t c = 0; c < planes_.size(); ++c) {
      const auto first = static_cast<std::int64_t>(c) * plane_numel;
      normalise_bytes(image + first, plane_numel, planes_[c].factor, planes_[c].offset, out + first);
    }
    return;
  }
  const auto random =
      mix_seed(context.seed, {0xa06, static_cast<std::uint64_t>(context.epoch), static_cast<std::uint64_t>(index)});
  const auto choices = static_cast<std::uint64_t>(2 * transform_.padding + 1);
  const auto shift_y = static_cast<std::int64_t>((random & 0xffffff) % choices) - transform_.padding;
  const auto shift_x = static_cast<std::int64_t>((random >> 24 & 0xffffff) % choices) - transform_.padding;
  const bool flip = transform_.flip && (random >> 63) != 0;
  for (const auto& [factor, offset] : planes_) {
    for (std::int64_t y = 0; y < height_; ++y) {
      for (std::int64_t x = 0; x < width_; ++x) {
        const auto from_y = y + shift_y, from_x = (flip ? width_ - 1 - x : x) + shift_x;
        const bool inside = from_y >= 0 && from_y < height_ && from_x >= 0 && from_x < width_;
        out[y * width_ + x] = (inside ? static_cast<float>(image[from_y * width_ + from_x]) : 0.0f) * factor + offset;
      }
    }
    image += plane_numel;
    out += plane_numel;
  }
}

bool ImageDataset::quick(std::int64_t samples) const {
  return !transform_.augment &&
         samples <= kQuickNumel / std::max<std::int64_t>(1, images_.size(1) * images_.size(2) * images_.size(3));
}

Example ImageDataset::get(std::int64_t index, const SampleContext& context) const {
  auto batch = get_batch(std::span(&index, 1), context);
  return {batch.input[0], batch.target[0]};
}

Batch ImageDataset::get_batch(std::span<const std::int64_t> indices, const SampleContext& context) const {
  const auto numel = images_.size(1) * height_ * width_;
  const auto* images = images_.const_data_ptr<std::uint8_t>();
  const auto* labels = labels_.const_data_ptr<std::int64_t>();
  return batch_of_images(indices, {images_.size(1), height_, width_}, [&](std::int64_t index, float* out) {
    if (index < 0 || index >= size())
      throw Error(ErrorCode::usage, name_,
                  "sample " + std::to_string(index) + " is outside its " + std::to_string(size()));
    write_sample(images + index * numel, out, index, context);
    return labels[index];
  });
}

at::Tensor fit_images(const at::Tensor& images, std::int64_t channels, std::int64_t image_size) {
  auto fitted = images;
  if (image_size > 0 && (images.size(2) != image_size || images.size(3) != image_size)) {
    std::vector<at::Tensor> parts;
    for (const auto& part : images.split(4096)) {
      parts.push_back(at::upsample_bilinear2d(part.to(at::kFloat), {image_size, image_size}, false)
                          .round()
                          .clamp(0, 255)
                          .to(at::kByte));
    }
    fitted = at::cat(parts);
  }
  if (fitted.size(1) != channels) {
    if (fitted.size(1) != 1) {
      throw Error(ErrorCode::usage, "in_channels",
                  "the images have " + std::to_string(fitted.size(1)) + " channels, but the model needs " +
                      std::to_string(channels),
                  "set in_channels " + std::to_string(fitted.size(1)));
    }
    fitted = fitted.expand({fitted.size(0), channels, fitted.size(2), fitted.size(3)}).contiguous();
  }
  return fitted;
}

}  // namespace troupe
