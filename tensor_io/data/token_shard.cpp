#include "tensor_io/data/token_shard.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <vector>

namespace troupe {
namespace {

namespace fs = std::filesystem;
using Layout = TokenShard::Layout;

constexpr const char* kReadingShard = "reading tokens";
constexpr std::uint64_t kLlmHeaderBytes = 256 * 4;
constexpr std::int64_t kSeenWhole = 1 << 16, kSeenPart = 1 << 12;  // ids that are looked at when a shard is opened
constexpr const char* kCutOff = "copy or write it again: it was cut off, or is still being written";

static_assert(std::endian::native == std::endian::little,
              "token shards are little-endian, as are all hosts that LibTorch runs on");

/// llm.c's two kinds (dev/data/data_common.py): ids of GPT-2's tokenizer, and of Llama 3's.
struct LlmFormat {
  std::uint32_t magic, version;
  std::int64_t id_bytes;
};
constexpr LlmFormat kLlmFormats[] = {{20240520, 1, 2}, {20240801, 7, 4}};

template <class T>
T value_at(const BoundedFile& file, std::uint64_t offset) {
  T value{};
  file.read_at(offset, std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

std::string text_at(const BoundedFile& file, std::uint64_t offset, std::uint64_t most) {
  std::string text(static_cast<std::size_t>(std::min(most, file.bytes() - std::min(offset, file.bytes()))), '\0');
  if (!text.empty()) file.read_at(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

Layout llm_layout(const BoundedFile& file) {
  if (file.bytes() < kLlmHeaderBytes) return {};
  const auto magic = value_at<std::uint32_t>(file, 0), version = value_at<std::uint32_t>(file, 4);
  for (const auto& format : kLlmFormats) {
    if (format.magic != magic) continue;
    if (format.version != version)
      file.refuse("offset 4, version: " + std::to_string(version) + ", this program reads " +
                      std::to_string(format.version) + " (uint" + std::to_string(8 * format.id_bytes) + ")",
                  "write it with that version");
    return {kLlmHeaderBytes, format.id_bytes, false, value_at<std::uint32_t>(file, 8), 8, true};
  }
  return {};
}

// numpy.lib.format: magic, version, length of a Python dict in text, then the array.
Layout npy_layout(const BoundedFile& file) {
  if (text_at(file, 0, 6) != "\x93NUMPY") return {};
  const bool is_short = text_at(file, 6, 1) == "\x01";
  const std::uint64_t begin = is_short ? 10 : 12;
  if (file.bytes() < begin) file.refuse("offset 6: NumPy's header is cut off", kCutOff);
  const std::uint64_t length = is_short ? value_at<std::uint16_t>(file, 8) : value_at<std::uint32_t>(file, 8);
  const auto header = text_at(file, begin, std::min<std::uint64_t>(length, 1 << 16));
  const auto after = [&](const std::string& key) {
    const auto at = header.find("'" + key + "': ");
    return at == std::string::npos ? std::string() : header.substr(at + key.size() + 4);
  };
  const auto type = after("descr"), shape = after("shape");
  const auto descr = type.substr(0, type.find(','));
  const bool integer = descr.size() == 5 && (descr[2] == 'u' || descr[2] == 'i') &&
                       (descr[1] == '<' || descr[1] == '|') && std::string("1248").find(descr[3]) != std::string::npos;
  if (!integer)
    file.refuse("offset " + std::to_string(begin) + ", descr: " + printable(descr) + " is not a little-endian integer",
                "write it with ids.astype('uint16') or 'uint32'");
  std::int64_t tokens = -1;
  const auto* first = shape.data() + (shape.empty() ? 0 : 1);
  const auto [end, error] = std::from_chars(first, shape.data() + shape.size(), tokens);
  if (error != std::errc() || tokens < 0 || !std::string_view(end).starts_with(",)"))
    file.refuse("offset " + std::to_string(begin) + ", shape: " + printable(shape.substr(0, shape.find(')') + 1)) +
                    " is not one dimension",
                "write it with ids.reshape(-1)");
  return {begin + length, descr[3] - '0', descr[2] == 'i', tokens, begin, true};
}

// Megatron-LM's core/datasets/indexed_dataset.py: the ids alone are in .bin, all else is in .idx.
Layout megatron_layout(const std::string& path) {
  const auto index = fs::path(path).replace_extension(".idx");
  std::error_code unknown;
  if (fs::path(path).extension() != ".bin" || !fs::exists(index, unknown)) return {};
  const BoundedFile file(kReadingShard, index.string());
  constexpr std::uint64_t kHead = 9 + 8 + 1 + 8 + 8;
  if (text_at(file, 0, 9) != std::string("MMIDIDX\0\0", 9) || file.bytes() < kHead)
    file.refuse("offset 0, magic: it is not an index of Megatron-LM, but lies beside a token shard",
                "make the shard again with Megatron-LM's tools, or move the .idx away if it belongs to something else");
  if (const auto version = value_at<std::uint64_t>(file, 9); version != 1)
    file.refuse("offset 9, version: " + std::to_string(version) + ", this program reads 1",
                "write it with that version");
  static constexpr std::array<std::pair<int, bool>, 9> types{
      {{0, false}, {1, false}, {1, true}, {2, true}, {4, true}, {8, true}, {0, false}, {0, false}, {2, false}}};
  const auto code = value_at<std::uint8_t>(file, 17);
  if (code >= types.size() || types[code].first == 0)
    file.refuse("offset 17, dtype: " + std::to_string(code) + " is not an integer", "write the ids as uint16 or int32");
  const auto sequences = value_at<std::uint64_t>(file, 18);
  if (sequences > (file.bytes() - kHead) / 4)
    file.refuse("offset 18, sequences: " + std::to_string(sequences) + ", more than the file holds", kCutOff);
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(sequences));
  if (!lengths.empty()) file.read_at(kHead, std::as_writable_bytes(std::span(lengths)));
  std::int64_t tokens = 0;
  for (const auto length : lengths) tokens += std::max(length, 0);
  return {0, types[code].first, types[code].second, tokens, 18, true};
}

Layout layout_of(const BoundedFile& file) {
  for (const auto& layout : {npy_layout(file), llm_layout(file), megatron_layout(file.path())}) {
    if (layout.known) return layout;
  }
  return {};
}

bool all_of_text(std::span<const std::int64_t> ids, std::int64_t bytes) {
  return std::all_of(ids.begin(), ids.end(), [&](std::int64_t id) {
    for (std::int64_t i = 0; i < bytes; ++i, id >>= 8) {
      const auto byte = id & 0xff;
      if (byte != '\t' && byte != '\n' && byte != '\r' && (byte < 0x20 || byte > 0x7e)) return false;
    }
    return true;
  });
}

/// Whether ids look like halves of wider ones: every second is next to nothing, as in ids below 262,144 (the largest
/// vocabularies), and the others are not, or it is 0 throughout.
bool looks_wider(std::span<const std::int64_t> ids) {
  std::int64_t low = 0, high = 0;
  for (std::size_t i = 0; i + 1 < ids.size(); i += 2) {
    low = std::max(low, ids[i]);
    high = std::max(high, ids[i + 1]);
  }
  return ids.size() > 3 && high <= 3 && (low > 3 || high == 0);
}

}  // namespace

TokenShard::TokenShard(const std::string& path, std::int64_t bits, std::int64_t vocab_size) : path_(path) {
  const BoundedFile file(kReadingShard, path);
  layout_ = layout_of(file);
  if (bits != 0 && layout_.known && bits != this->bits())
    file.refuse("token_bits is " + std::to_string(bits) + ", its header says " + std::to_string(this->bits()),
                "leave token_bits at 0: the header decides");
  if (bits != 0) layout_.bytes = bits / 8;
  if (bits == 0 && !layout_.known && vocab_size > 65536)
    file.refuse("it has no header, so its ids are taken for 16 bits, and vocab_size " + std::to_string(vocab_size) +
                    " needs more",
                "set token_bits 32 if it holds uint32, or 16 if all its ids are below 65,536");
  const auto bytes = static_cast<std::uint64_t>(layout_.bytes), all = file.bytes();
  if (all < layout_.header_bytes) file.refuse("offset " + std::to_string(all) + ": the header is cut off", kCutOff);
  if (const auto ids = all - layout_.header_bytes; ids % bytes != 0)
    file.refuse("offset " + std::to_string(all - ids % bytes) + ": its " + std::to_string(all) +
                    " bytes are not a whole number of uint" + std::to_string(this->bits()),
                "copy or write it again: its end is missing");
  tokens_ = static_cast<std::int64_t>((all - layout_.header_bytes) / bytes);
  if (layout_.tokens >= 0 && layout_.tokens != tokens_)
    file.refuse("offset " + std::to_string(layout_.count_offset) + ", number of tokens: " +
                    std::to_string(layout_.tokens) + ", but the file holds " + std::to_string(tokens_),
                kCutOff);
  look(file, bits != 16 && !layout_.known);
}

void TokenShard::look(const BoundedFile& file, bool doubt) {
  all_seen_ = tokens_ <= kSeenWhole;
  const auto part = all_seen_ ? tokens_ : kSeenPart;
  bool wider = doubt && part > 0, text = doubt && layout_.bytes == 2;  // until an id says otherwise
  std::vector<std::int64_t> ids(static_cast<std::size_t>(part));
  for (const auto first : {std::int64_t{0}, tokens_ / 4 * 2, (tokens_ - part) / 2 * 2}) {
    if (part == 0 || (all_seen_ && first > 0)) break;
    read_ids(file, first, ids);
    largest_ = std::max(largest_, *std::max_element(ids.begin(), ids.end()));
    wider = wider && looks_wider(ids);
    text = text && all_of_text(ids, layout_.bytes);
  }
  const auto width = std::to_string(bits()), wide = std::to_string(2 * bits());
  if (wider)
    file.refuse("it has no header, and every second one of its " + width + "-bit numbers is near 0 (the first: " +
                    std::to_string(ids[0]) + ", " + std::to_string(ids[1]) + "), as in ids of " + wide + " bits",
                layout_.bytes == 2 ? "set token_bits 32 if it holds uint32, or 16 if these are its ids"
                                   : "write its ids as uint32");
  if (text && tokens_ > 3)
    file.refuse("it has no header, and all its bytes are text",
                "name it .txt, or set token_bits 16 if these are its ids");
}

template <class Id>
void TokenShard::read_as(const BoundedFile& file, std::int64_t first, std::span<std::int64_t> out) const {
  std::vector<Id> ids(out.size());
  file.read_at(layout_.header_bytes + sizeof(Id) * static_cast<std::uint64_t>(first),
               std::as_writable_bytes(std::span(ids)));
  std::copy(ids.begin(), ids.end(), out.begin());
}

void TokenShard::read_ids(const BoundedFile& file, std::int64_t first, std::span<std::int64_t> out) const {
  switch (layout_.is_signed ? -layout_.bytes : layout_.bytes) {
    case 1: return read_as<std::uint8_t>(file, first, out);
    case 2: return read_as<std::uint16_t>(file, first, out);
    case 4: return read_as<std::uint32_t>(file, first, out);
    case -1: return read_as<std::int8_t>(file, first, out);
    case -2: return read_as<std::int16_t>(file, first, out);
    case -4: return read_as<std::int32_t>(file, first, out);
    default: return read_as<std::int64_t>(file, first, out);  // uint64: ids from 2^63 on are negative, and refused
  }
}

void TokenShard::read(std::int64_t first, std::int64_t vocab_size, std::span<std::int64_t> out) const {
  const BoundedFile file(kReadingShard, path_);
  const auto bytes = static_cast<std::uint64_t>(layout_.bytes);
  if (file.bytes() < layout_.header_bytes ||
      (file.bytes() - layout_.header_bytes) / bytes != static_cast<std::uint64_t>(tokens_))
    file.refuse("it has " + std::to_string(file.bytes()) + " bytes, at the start it held " + std::to_string(tokens_) +
                    " tokens",
                "leave the shards alone while a job reads them");
  read_ids(file, first, out);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (out[i] < 0 || out[i] >= vocab_size)
      file.refuse("offset " + std::to_string(layout_.header_bytes + bytes * (static_cast<std::uint64_t>(first) + i)) +
                      ": token id " + std::to_string(out[i]) + " is not below vocab_size " + std::to_string(vocab_size),
                  "set vocab_size to the tokenizer's (GPT-2: 50257, Llama 3: 128256)");
  }
}

}  // namespace troupe
