#include "tensor_io/data/token_dataset.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>

#include "tensor_io/base/error.hpp"
#include "tensor_io/data/files_hash.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxTextBytes = std::uint64_t{1} << 30;  // of one file, and of all together
constexpr std::int64_t kHeldOutEvery = 20;
constexpr std::uint64_t kLlmHeaderBytes = 256 * 4;

/// llm.c's two kinds (dev/data/data_common.py): ids of GPT-2's tokenizer, and of Llama 3's.
struct LlmFormat {
  std::uint32_t magic, version;
  std::uint64_t id_bytes;
};
constexpr LlmFormat kLlmFormats[] = {{20240520, 1, 2}, {20240801, 7, 4}};
constexpr const char* kReading = "reading tokens";

static_assert(std::endian::native == std::endian::little,
              "token shards are little-endian, as are all hosts that LibTorch runs on");

bool is_shard(const fs::path& path) { return path.extension() == ".bin"; }

/// Regular files below a folder, in the order of their paths, so that every rank sees the same.
std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    if (entry->symlink_status().type() == fs::file_type::regular) files.push_back(entry->path().string());
  }
  if (error)
    throw Error(ErrorCode::io, std::string(kReading) + ": " + folder, error.message(),
                "set data_dir to a folder that can be read");
  std::sort(files.begin(), files.end());
  return files;
}

/// The file's bytes, unless they hold a NUL: then nothing for a file that was found, an error for one that was named.
std::string read_text(const std::string& path, bool named) {
  const BoundedFile file(kReading, path);
  auto text = file.read_all(kMaxTextBytes);
  const auto nul = text.find('\0');
  if (nul == std::string::npos) return text;
  if (named)
    file.refuse("offset " + std::to_string(nul) + ": a NUL byte, so it is no text", "token shards are named *.bin");
  return {};
}

struct Found {
  std::vector<std::string> shards;
  std::vector<std::pair<std::string, bool>> texts;  // path, named by the user
};

Found find_files(const std::vector<std::string>& paths) {
  Found found;
  for (const auto& path : paths) {
    if (!fs::exists(path)) {
      throw Error(ErrorCode::unavailable, std::string(kReading) + ": " + path, "there is no such file or folder",
                  "set data_dir to text files, folders or .bin shards");
    }
    if (!fs::is_directory(path)) {
      if (is_shard(path)) {
        found.shards.push_back(path);
      } else {
        found.texts.emplace_back(path, true);
      }
      continue;
    }
    const auto files = files_below(path);
    const bool has_shards = std::any_of(files.begin(), files.end(), [](const auto& file) { return is_shard(file); });
    for (const auto& file : files) {
      if (has_shards && is_shard(file)) found.shards.push_back(file);
      if (!has_shards) found.texts.emplace_back(file, false);
    }
  }
  return found;
}

std::string join_texts(const std::vector<std::pair<std::string, bool>>& files) {
  std::string all;
  for (const auto& [path, named] : files) {
    const auto text = read_text(path, named);
    if (text.empty()) continue;
    if (!all.empty()) all += '\0';
    all += text;
    if (all.size() > kMaxTextBytes) {
      throw Error(ErrorCode::bad_data, std::string(kReading) + ": " + path,
                  "with it the text has more than " + std::to_string(kMaxTextBytes) + " bytes",
                  "make token shards of it");
    }
  }
  return all;
}

}  // namespace

TokenShard::TokenShard(const std::string& path) : path_(path) {
  const BoundedFile file(kReading, path);
  std::array<std::uint32_t, 3> header{};
  if (file.bytes() >= kLlmHeaderBytes) file.read_at(0, std::as_writable_bytes(std::span(header)));
  const auto version = header[1], count = header[2];
  const auto* format = std::find_if(std::begin(kLlmFormats), std::end(kLlmFormats),
                                    [&](const auto& each) { return each.magic == header[0]; });
  const bool has_header = format != std::end(kLlmFormats);
  if (has_header) id_bytes_ = format->id_bytes;
  if (file.bytes() % id_bytes_ != 0) {
    file.refuse("offset " + std::to_string(file.bytes() / id_bytes_ * id_bytes_) + ": its " +
                    std::to_string(file.bytes()) + " bytes are no whole number of uint" + std::to_string(8 * id_bytes_),
                "copy or write it again: its end is missing");
  }
  if (!has_header) {
    tokens_ = static_cast<std::int64_t>(file.bytes() / id_bytes_);
    return;
  }
  header_bytes_ = kLlmHeaderBytes;
  if (version != format->version) {
    file.refuse("offset 4, version: " + std::to_string(version) + ", this program reads " +
                    std::to_string(format->version) + " (uint" + std::to_string(8 * id_bytes_) + ")",
                "write it with that version");
  }
  const auto held = (file.bytes() - kLlmHeaderBytes) / id_bytes_;
  if (held != count) {
    file.refuse("offset 8, number of tokens: " + std::to_string(count) + ", but the file holds " + std::to_string(held),
                "copy or write it again: it was cut off, or is still being written");
  }
  tokens_ = count;
}

template <class Id>
void TokenShard::read_as(const BoundedFile& file, std::int64_t first, std::int64_t vocab_size,
                         std::span<std::int64_t> out) const {
  std::vector<Id> ids(out.size());
  const auto offset = header_bytes_ + sizeof(Id) * static_cast<std::uint64_t>(first);
  file.read_at(offset, std::as_writable_bytes(std::span(ids)));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= vocab_size) {
      file.refuse("offset " + std::to_string(offset + sizeof(Id) * i) + ": token id " + std::to_string(ids[i]) +
                      " is not below vocab_size " + std::to_string(vocab_size),
                  "set vocab_size to the tokenizer's (GPT-2: 50257, Llama 3: 128256)");
    }
    out[i] = ids[i];
  }
}

void TokenShard::read(std::int64_t first, std::int64_t vocab_size, std::span<std::int64_t> out) const {
  const BoundedFile file(kReading, path_);
  if (file.bytes() < header_bytes_ || (file.bytes() - header_bytes_) / id_bytes_ != static_cast<std::uint64_t>(tokens_))
    file.refuse("it has " + std::to_string(file.bytes()) + " bytes, at the start it held " + std::to_string(tokens_) +
                    " tokens",
                "leave the shards alone while a job reads them");
  if (id_bytes_ == 2) {
    read_as<std::uint16_t>(file, first, vocab_size, out);
  } else {
    read_as<std::uint32_t>(file, first, vocab_size, out);
  }
}

TokenDataset::TokenDataset(Sources sources, std::vector<std::pair<std::int32_t, std::int64_t>> samples,
                           const TokenOptions& options)
    : sources_(std::move(sources)),
      samples_(std::move(samples)),
      block_size_(options.block_size),
      vocab_size_(options.vocab_size) {}

std::uint64_t TokenDataset::files_hash() const {
  FilesHash hash;
  for (const auto& source : *sources_) hash.add(fs::path(source.name).filename().string(), source.tokens());
  return hash.value();
}

Example TokenDataset::get(std::int64_t index, const SampleContext&) const {
  const auto& [place, first] = samples_.at(static_cast<std::size_t>(index));
  const auto& source = (*sources_)[static_cast<std::size_t>(place)];
  auto ids = at::empty({block_size_ + 1}, at::kLong);
  const std::span<std::int64_t> out(ids.data_ptr<std::int64_t>(), static_cast<std::size_t>(block_size_ + 1));
  if (source.shard) {
    source.shard->read(first, vocab_size_, out);
  } else {
    std::transform(source.text.begin() + first, source.text.begin() + first + block_size_ + 1, out.begin(),
                   [](char c) { return static_cast<unsigned char>(c); });
  }
  return {ids.narrow(0, 0, block_size_), ids.narrow(0, 1, block_size_)};
}

TrainAndHeldOut read_tokens(const TokenOptions& options) {
  const auto files = find_files(options.paths);
  auto sources = std::make_shared<std::vector<TokenDataset::Source>>();
  for (const auto& path : files.shards) sources->push_back({path, {}, std::make_shared<TokenShard>(path)});
  if (auto text = join_texts(files.texts); !text.empty()) {
    if (options.vocab_size < 256) {
      throw Error(ErrorCode::usage, "vocab_size",
                  std::to_string(options.vocab_size) + " is too few for the bytes of text", "set it to 256");
    }
    sources->push_back({"text", std::move(text), nullptr});
  }
  const auto is_held_out = [](const std::string& name) {
    return fs::path(name).filename().string().find("val") != std::string::npos;
  };
  const bool whole_sources = std::any_of(sources->begin(), sources->end(),
                                         [&](const auto& source) { return source.shard && is_held_out(source.name); });
  std::vector<std::pair<std::int32_t, std::int64_t>> train, held_out;
  std::int64_t number = 0, tokens = 0;
  for (std::size_t place = 0; place < sources->size(); ++place) {
    const auto& source = (*sources)[place];
    tokens += source.tokens();
    // The last target of a sample is the first input of the next.
    for (std::int64_t first = 0; first + options.block_size < source.tokens(); first += options.block_size) {
      const bool kept =
          whole_sources ? source.shard && is_held_out(source.name) : number++ % kHeldOutEvery == kHeldOutEvery - 1;
      (kept ? held_out : train).emplace_back(static_cast<std::int32_t>(place), first);
    }
  }
  if (train.empty()) {
    throw Error(ErrorCode::usage, "data_dir",
                std::to_string(tokens) + " tokens to train on are not one sample of " +
                    std::to_string(options.block_size) + " and its target",
                "name more data, or set a smaller block_size");
  }
  auto rest = held_out.empty() ? nullptr : std::make_shared<TokenDataset>(sources, std::move(held_out), options);
  return {std::make_shared<TokenDataset>(sources, std::move(train), options), rest};
}

}  // namespace troupe
