#include "tensor_io/data/token_dataset.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>

#include "tensor_io/base/error.hpp"
#include "tensor_io/data/data_line.hpp"
#include "tensor_io/data/file_names.hpp"
#include "tensor_io/data/files_hash.hpp"
#include "tensor_io/files/bounded_file.hpp"
#include "tensor_io/files/file_layer.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxTextBytes = std::uint64_t{1} << 30;  // of one file, and of all together
constexpr std::int64_t kHeldOutEvery = 20;
constexpr const char* kReading = "reading tokens";

bool is_shard(const fs::path& path) { return path.extension() == ".bin" || path.extension() == ".npy"; }

/// Whether `test` stands in a file's name as a word: such a part is for neither training nor validation.
bool is_test(const fs::path& path) {
  const auto name = path.filename().string();
  const auto is_letter = [&](std::size_t at) {
    return at < name.size() && std::isalnum(static_cast<unsigned char>(name[at])) != 0;
  };
  for (auto at = name.find("test"); at != std::string::npos; at = name.find("test", at + 1)) {
    if ((at == 0 || !is_letter(at - 1)) && !is_letter(at + 4)) return true;
  }
  return false;
}

/// Regular files below a folder, in the order of their paths, so that every rank sees the same.
std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    if (entry->symlink_status(error).type() == fs::file_type::regular) files.push_back(entry->path().string());
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
    file.refuse("offset " + std::to_string(nul) + ": a NUL byte, so it is not text",
                "token shards are named *.bin or *.npy");
  return {};
}

struct Found {
  std::vector<std::string> shards;
  std::vector<std::pair<std::string, bool>> texts;  // path, named by the user
  std::int64_t tests = 0;                           // shards passed over
};

Found find_files(const std::vector<std::string>& paths) {
  Found found;
  for (const auto& path : paths) {
    if (!is_there(path, "data_dir")) {
      throw Error(ErrorCode::unavailable, std::string(kReading) + ": " + path, "there is no such file or folder",
                  "set data_dir to text files, folders or .bin and .npy shards");
    }
    if (!is_folder(path, "data_dir")) {
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
      if (has_shards && is_shard(file)) is_test(file) ? void(++found.tests) : found.shards.push_back(file);
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

/// "tokens: 20,000 of 32 bits in 2 shards, largest 128,255".
std::string described(const std::vector<TokenDataset::Source>& sources, std::int64_t tests) {
  std::int64_t tokens = 0, shards = 0, largest = -1;
  std::set<std::int64_t> widths;
  bool all_seen = true;
  for (const auto& source : sources) {
    tokens += source.tokens();
    if (!source.shard) continue;
    ++shards;
    widths.insert(source.shard->bits());
    largest = std::max(largest, source.shard->largest());
    all_seen = all_seen && source.shard->all_seen();
  }
  auto text = "tokens: " + with_commas(tokens);
  if (shards == 0) return text + " bytes of text";
  std::string bits;
  for (const auto width : widths) bits += (bits.empty() ? " of " : " and ") + std::to_string(width);
  text += bits + " bits in " + with_commas(shards) + (shards == 1 ? " shard" : " shards");
  if (static_cast<std::size_t>(shards) < sources.size()) text += " and text";
  text += (all_seen ? ", largest " : ", largest of those looked at ") + with_commas(largest);
  return tests == 0 ? text : text + ", " + with_commas(tests) + " named test passed over";
}

}  // namespace

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
  if (options.token_bits != 0 && options.token_bits != 16 && options.token_bits != 32)
    throw Error(ErrorCode::usage, "token_bits", std::to_string(options.token_bits) + " is not one of 0, 16 and 32",
                "set it to what a shard without a header holds, or leave it at 0");
  const auto files = find_files(options.paths);
  auto sources = std::make_shared<std::vector<TokenDataset::Source>>();
  for (const auto& path : files.shards)
    sources->push_back({path, {}, std::make_shared<TokenShard>(path, options.token_bits, options.vocab_size)});
  if (auto text = join_texts(files.texts); !text.empty()) {
    if (options.vocab_size < 256) {
      throw Error(ErrorCode::usage, "vocab_size",
                  std::to_string(options.vocab_size) + " is too few for the bytes of text", "set it to 256");
    }
    sources->push_back({"text", std::move(text), nullptr});
  }
  const auto is_held_out = [](const std::string& name) {
    return part_in_name(fs::path(name).filename().string()) == PartName::validation;
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
                std::to_string(tokens) +
                    (held_out.empty() ? " tokens to train on"
                                      : " tokens, less those of shards with val in their name, which are held out,") +
                    " are too few for one sample of " + std::to_string(options.block_size) + " and its target",
                "name more data, or set a smaller block_size");
  }
  const auto make = [&](auto samples, const std::string& description) -> std::shared_ptr<const Dataset> {
    if (samples.empty()) return nullptr;
    auto made = std::make_shared<TokenDataset>(sources, std::move(samples), options);
    made->set_description(description);
    return made;
  };
  return {make(std::move(train), described(*sources, files.tests) + "; samples of " + with_commas(options.block_size)),
          make(std::move(held_out), whole_sources ? "shards with val in their name" : "every 20th")};
}

}  // namespace troupe
