#include "tensor_io/data/image_decode.hpp"

#include <ATen/ops/empty.h>
#include <png.h>
#include <turbojpeg.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

constexpr std::int64_t kMostGrowth = 1032;         // deflate makes no more of a byte
constexpr std::int64_t kMostPixelsInAByte = 1024;  // 64 grey pixels take at least a bit of a JPEG

[[noreturn]] void refuse(const std::string& where, const std::string& cause, const std::string& remedy = {}) {
  throw Error(ErrorCode::bad_data, where, cause,
              remedy.empty() ? "fix or remove it, or set on_bad_sample to skip" : remedy);
}

void check_size(const std::string& where, std::int64_t width, std::int64_t height) {
  if (width > 0 && height > 0 && width <= kMostPixels && height <= kMostPixels / width) return;
  refuse(where, "its header says " + std::to_string(width) + "x" + std::to_string(height) + " pixels, 1 to " +
                    std::to_string(kMostPixels) + " are allowed");
}

void check_length(const std::string& where, std::int64_t width, std::int64_t height, std::int64_t least_bytes,
                  std::size_t bytes) {
  if (least_bytes <= static_cast<std::int64_t>(bytes)) return;
  refuse(where, "its header says " + std::to_string(width) + "x" + std::to_string(height) + " pixels, more than its " +
                    std::to_string(bytes) + " bytes can hold");
}

/// ITU-R 601, as Pillow rounds it.
std::uint8_t grey(const std::uint8_t* rgb) {
  return static_cast<std::uint8_t>((rgb[0] * 19595u + rgb[1] * 38470u + rgb[2] * 7471u + 0x8000u) >> 16);
}

/// (h, w, 1 or 3) -> (h, w, channels).
at::Tensor with_channels(const at::Tensor& image, std::int64_t channels) {
  const auto has = image.size(2);
  if (has == channels) return image;
  if (has == 1) return image.expand({image.size(0), image.size(1), channels}).contiguous();
  auto out = at::empty({image.size(0), image.size(1), 1}, at::kByte);
  const auto* from = image.const_data_ptr<std::uint8_t>();
  auto* to = out.data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < out.numel(); ++i) to[i] = grey(from + 3 * i);
  return out;
}

// ---------------------------------------------------------------- JPEG

struct CloseTurbo {
  void operator()(void* handle) const { tjDestroy(handle); }
};

/// A new one for each picture: it keeps the tables of the picture before, by which one without tables of its own would
/// be decoded, and after an error in a header it reads on in the middle of that picture.
std::unique_ptr<void, CloseTurbo> make_decompressor() { return std::unique_ptr<void, CloseTurbo>(tjInitDecompress()); }

/// What libjpeg warns of and decodes all the same, with every pixel that there is; ImageNet has some. It keeps its
/// first warning alone, and calls an error a warning where one came before (TJERR_WARNING), so the text decides; and
/// behind a warning the picture must have an end.
bool harmless(std::string_view warning, std::span<const std::byte> bytes) {
  constexpr std::string_view kEnd = "\xff\xd9";
  const std::string_view last(
      reinterpret_cast<const char*>(bytes.data()) + bytes.size() - std::min<std::size_t>(bytes.size(), 1024),
      std::min<std::size_t>(bytes.size(), 1024));
  return last.find(kEnd) != std::string_view::npos &&
         (warning.find("extraneous bytes before marker") != std::string_view::npos ||
          warning.find("unknown JFIF revision") != std::string_view::npos ||
          warning.find("Unknown Adobe color") != std::string_view::npos ||
          warning.find("Invalid SOS parameters for sequential") != std::string_view::npos);
}

int smaller(int length, int denominator) { return (length + denominator - 1) / denominator; }

at::Tensor decode_jpeg(std::span<const std::byte> bytes, const std::string& where, std::int64_t channels,
                       std::int64_t least_side) {
  const auto decompressor = make_decompressor();
  auto* handle = decompressor.get();
  if (handle == nullptr)
    throw Error(ErrorCode::unavailable, where, std::string("libturbojpeg does not start: ") + tjGetErrorStr2(nullptr));
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  int width = 0, height = 0, subsampling = 0, colours = 0;
  if (tjDecompressHeader3(handle, data, bytes.size(), &width, &height, &subsampling, &colours) != 0 &&
      !harmless(tjGetErrorStr2(handle), bytes)) {
    const std::string reason = tjGetErrorStr2(handle);
    if (reason.find("subsampling type") != std::string::npos) {
      refuse(where,
             "its JPEG header: the chroma's sampling factors are not one of 4:4:4, 4:2:2, 4:2:0, 4:4:0, 4:1:1 and "
             "grey, or 4:4:4 for CMYK",
             "write it again with one of these, or set on_bad_sample to skip");
    }
    refuse(where, "its JPEG header: " + reason);
  }
  if (width == 0) refuse(where, "its JPEG header: premature end, before the picture's size");  // libjpeg: "tables only"
  check_size(where, width, height);
  check_length(where, width, height, std::int64_t{width} * height / kMostPixelsInAByte, bytes.size());
  int denominator = 8;
  while (denominator > 1 && (least_side <= 0 || smaller(std::min(width, height), denominator) < 2 * least_side))
    denominator /= 2;
  width = smaller(width, denominator);
  height = smaller(height, denominator);
  const bool four = colours == TJCS_CMYK || colours == TJCS_YCCK;
  const bool one = colours == TJCS_GRAY || (channels == 1 && !four);
  const auto planes = four ? 4 : one ? 1 : 3;
  auto image = at::empty({height, width, planes}, at::kByte);
  auto* pixels = image.data_ptr<std::uint8_t>();
  if (tjDecompress2(handle, data, bytes.size(), pixels, width, 0, height,
                    four  ? TJPF_CMYK
                    : one ? TJPF_GRAY
                          : TJPF_RGB,
                    TJFLAG_LIMITSCANS) != 0 &&
      !harmless(tjGetErrorStr2(handle), bytes))
    refuse(where, tjGetErrorStr2(handle));
  if (!four) return with_channels(image, channels);
  auto rgb = at::empty({height, width, 3}, at::kByte);
  auto* out = rgb.data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < rgb.numel() / 3; ++i) {  // Adobe writes ink inverted: all are bright where there is none
    const unsigned bright = pixels[4 * i + 3];
    for (int c = 0; c < 3; ++c) {
      const unsigned ink = (255u - pixels[4 * i + c]) * bright + 128;
      out[3 * i + c] = static_cast<std::uint8_t>(bright - (((ink >> 8) + ink) >> 8));
    }
  }
  return with_channels(rgb, channels);
}

// ---------------------------------------------------------------- PNG

constexpr std::size_t kPngSignature = 8;

struct PngInput {
  std::span<const std::byte> bytes;
  std::size_t position = 0;
  char reason[160] = "";
};

[[noreturn]] void png_stops(png_structp png, png_const_charp reason) {
  auto& input = *static_cast<PngInput*>(png_get_error_ptr(png));
  std::strncpy(input.reason, reason, sizeof input.reason - 1);
  png_longjmp(png, 1);
}

void png_warns(png_structp, png_const_charp) {}

void png_wants(png_structp png, png_bytep out, png_size_t length) {
  auto& input = *static_cast<PngInput*>(png_get_io_ptr(png));
  if (length > input.bytes.size() - input.position) png_error(png, "the file ends early");
  std::memcpy(out, input.bytes.data() + input.position, length);
  input.position += length;
}

struct PngReader {
  png_structp png = nullptr;
  png_infop info = nullptr;
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
};

// libpng leaves by longjmp, so the functions that it may leave hold nothing that wants to be destroyed.
bool read_png_header(PngReader& reader) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_read_info(reader.png, reader.info);
  return true;
}

bool prepare_png(PngReader& reader, std::int64_t* channels) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_set_strip_16(reader.png);
  png_set_expand(reader.png);  // palettes to RGB, 1 to 4 bits to 8, transparency to alpha
  png_set_strip_alpha(reader.png);
  png_set_interlace_handling(reader.png);
  png_read_update_info(reader.png, reader.info);
  *channels = png_get_channels(reader.png, reader.info);
  return true;
}

bool read_png_rows(PngReader& reader, png_bytep* rows) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_read_image(reader.png, rows);
  png_read_end(reader.png, nullptr);
  return true;
}

at::Tensor decode_png(std::span<const std::byte> bytes, const std::string& where, std::int64_t channels) {
  PngInput input{bytes};
  PngReader reader;
  reader.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &input, png_stops, png_warns);
  reader.info = reader.png == nullptr ? nullptr : png_create_info_struct(reader.png);
  if (reader.info == nullptr) throw Error(ErrorCode::unavailable, where, "libpng does not start");
  const auto failed = [&](const char* part) {
    refuse(where, std::string("offset ") + std::to_string(input.position) + ", " + part + ": " + input.reason);
  };
  png_set_read_fn(reader.png, &input, png_wants);
  png_set_user_limits(reader.png, 0x7fffffff, 0x7fffffff);  // ours are stricter, and say more
  png_set_chunk_malloc_max(reader.png, 8 << 20);
  if (!read_png_header(reader)) failed("header");
  const auto width = static_cast<std::int64_t>(png_get_image_width(reader.png, reader.info));
  const auto height = static_cast<std::int64_t>(png_get_image_height(reader.png, reader.info));
  check_size(where, width, height);
  const auto bits =
      static_cast<std::int64_t>(png_get_bit_depth(reader.png, reader.info)) * png_get_channels(reader.png, reader.info);
  check_length(where, width, height, (width * bits / 8) * height / kMostGrowth, bytes.size());
  std::int64_t planes = 0;
  if (!prepare_png(reader, &planes)) failed("header");
  auto image = at::empty({height, width, planes}, at::kByte);
  std::vector<png_bytep> rows(static_cast<std::size_t>(height));
  for (std::size_t y = 0; y < rows.size(); ++y)
    rows[y] = image.data_ptr<std::uint8_t>() + static_cast<std::int64_t>(y) * width * planes;
  if (!read_png_rows(reader, rows.data())) failed("pixels");
  return with_channels(image, channels);
}

// ---------------------------------------------------------------- neither

/// What Pillow would read by its first bytes, whatever the file's name, and what stands in a picture's place at times.
std::string known_format(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), std::min<std::size_t>(bytes.size(), 64));
  const auto has = [&](std::string_view magic, std::size_t offset = 0) {
    return text.size() >= offset + magic.size() && text.substr(offset, magic.size()) == magic;
  };
  if (has("GIF8")) return "GIF";
  if (has("RIFF") && has("WEBP", 8)) return "WebP";
  if (has("BM")) return "BMP";
  if (has(std::string_view("II*\0", 4)) || has(std::string_view("MM\0*", 4))) return "TIFF";
  if (has("ftyp", 4)) return "HEIC, AVIF or a video";
  if (has("version https://git-lfs")) return "a pointer of Git LFS";
  if (has("<!DOCTYPE") || has("<!doctype") || has("<html")) return "an HTML page";
  return {};
}

}  // namespace

at::Tensor decode_image(std::span<const std::byte> bytes, const std::string& where, std::int64_t channels,
                        std::int64_t least_side) {
  const auto begins = [&](std::string_view magic) {
    return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
  };
  if (begins("\xff\xd8\xff")) return decode_jpeg(bytes, where, channels, least_side);
  if (begins("\x89PNG\r\n\x1a\n") && bytes.size() > kPngSignature) return decode_png(bytes, where, channels);
  const std::string known = known_format(bytes);
  refuse(where,
         "offset 0, magic: its " + std::to_string(bytes.size()) + " bytes are neither JPEG nor PNG" +
             (known.empty() ? "" : " but " + known),
         known.starts_with("a pointer") ? "fetch the file itself (git lfs pull), or set on_bad_sample to skip" : "");
}

}  // namespace troupe
