#include "tensor_io/data/image_reader.hpp"

#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>

#include "tensor_io/base/error.hpp"
#include "tensor_io/base/mix_seed.hpp"
#include "tensor_io/data/image_decode.hpp"

namespace troupe {
namespace {

constexpr float kMean[] = {0.485f, 0.456f, 0.406f}, kStddev[] = {0.229f, 0.224f, 0.225f};
constexpr float kGreyMean = 0.449f, kGreyStddev = 0.226f;

double unit(std::uint64_t bits) { return static_cast<double>(bits >> 11) / 9007199254740992.0; }

/// Rows of interleaved bytes to planes of floats.
void normalise(const std::uint8_t* from, std::int64_t pixels, std::int64_t channels, bool flip, std::int64_t width,
               float* out) {
  for (std::int64_t c = 0; c < channels; ++c) {
    const float mean = channels == 1 ? kGreyMean : kMean[c], stddev = channels == 1 ? kGreyStddev : kStddev[c];
    const float factor = 1 / (255 * stddev), offset = -mean / stddev;
    float* plane = out + c * pixels;
    const auto* source = from + c;
    if (!flip) {
      for (std::int64_t i = 0; i < pixels; ++i) plane[i] = static_cast<float>(source[i * channels]) * factor + offset;
      continue;
    }
    for (std::int64_t row = 0; row < pixels; row += width) {
      for (std::int64_t x = 0; x < width; ++x)
        plane[row + x] = static_cast<float>(source[(row + width - 1 - x) * channels]) * factor + offset;
    }
  }
}

}  // namespace

CropBox middle_square(std::int64_t height, std::int64_t width) {
  const auto side = std::min(height, width);
  return {(height - side) / 2, (width - side) / 2, side, side};
}

CropBox random_crop(std::int64_t height, std::int64_t width, std::uint64_t random) {
  const auto area = static_cast<double>(height * width), widest = std::log(4.0 / 3.0);
  for (std::uint64_t draw = 0; draw < 10; ++draw) {
    const auto number = [&](std::uint64_t which) { return unit(mix_seed(random, {draw, which})); };
    const double part = area * (0.08 + 0.92 * number(0)), ratio = std::exp((2 * number(1) - 1) * widest);
    const auto w = std::llround(std::sqrt(part * ratio)), h = std::llround(std::sqrt(part / ratio));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    const auto place = [&](std::uint64_t which, std::int64_t room) {
      return std::min(room, static_cast<std::int64_t>(number(which) * static_cast<double>(room + 1)));
    };
    return {place(2, height - h), place(3, width - w), h, w};
  }
  return middle_square(height, width);
}

ImageReader::ImageReader(const DataOptions& options, bool augment)
    : channels_(options.in_channels), side_(options.image_size), augment_(augment) {
  if (side_ <= 0)
    throw Error(ErrorCode::usage, "image_size", "pictures in files differ in size, and a batch needs one size",
                "set image_size, for instance 224");
  if (channels_ != 1 && channels_ != 3) {
    throw Error(ErrorCode::usage, "in_channels",
                "pictures can't be read with " + std::to_string(channels_) + " channels", "set it to 1 or 3");
  }
}

void ImageReader::read(std::span<const std::byte> file, const std::string& where, std::int64_t sample,
                       const SampleContext& context, float* out) const {
  // A random part may be small, so then nothing is decoded smaller than it is.
  const auto image = decode_image(file, where, channels_, augment_ ? 0 : side_);
  const auto random =
      mix_seed(context.seed, {0xc809, static_cast<std::uint64_t>(context.epoch), static_cast<std::uint64_t>(sample)});
  const auto box =
      augment_ ? random_crop(image.size(0), image.size(1), random) : middle_square(image.size(0), image.size(1));
  auto part = image.narrow(0, box.top, box.height).narrow(1, box.left, box.width);
  if (box.height != side_ || box.width != side_) {
    // Channels last, as LibTorch's vectorised kernel for bytes wants it: the one that Pillow's own arithmetic was taken
    // over into.
    const auto resized =
        at::_upsample_bilinear2d_aa(part.contiguous().permute({2, 0, 1}).unsqueeze(0), {side_, side_}, false);
    part = resized[0].permute({1, 2, 0});
  }
  part = part.contiguous();
  const bool flip = augment_ && (mix_seed(random, {10}) >> 63) != 0;
  normalise(part.const_data_ptr<std::uint8_t>(), side_ * side_, channels_, flip, side_, out);
}

Batch batch_of_images(std::span<const std::int64_t> indices, std::array<std::int64_t, 3> shape,
                      const std::function<std::int64_t(std::int64_t index, float* out)>& read_sample) {
  const auto n = static_cast<std::int64_t>(indices.size());
  Batch batch;
  batch.input = at::empty({n, shape[0], shape[1], shape[2]}, at::kFloat);
  batch.target = at::empty({n}, at::kLong);
  batch.index = at::tensor(at::ArrayRef<std::int64_t>(indices.data(), indices.size()), at::kLong);
  auto* out = batch.input.data_ptr<float>();
  auto* label = batch.target.data_ptr<std::int64_t>();
  for (const auto index : indices) {
    *label++ = read_sample(index, out);
    out += shape[0] * shape[1] * shape[2];
  }
  return batch;
}

}  // namespace troupe
