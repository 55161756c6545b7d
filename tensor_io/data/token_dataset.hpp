#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tensor_io/data/datasets.hpp"
#include "tensor_io/files/bounded_file.hpp"

namespace troupe {

/// What a language model reads, and how it is cut into samples.
struct TokenOptions {
  /// Files and folders. `.bin` files are token shards; everything else is text, whose bytes are the tokens. A folder is
  /// searched: with shards in it they are what counts, otherwise all its text files (links and files with a NUL byte
  /// are passed over).
  std::vector<std::string> paths;
  std::int64_t block_size = 128;  ///< tokens of a sample
  std::int64_t vocab_size = 256;  ///< token ids are below it
};

/// A file of token ids, little-endian, read piece by piece: nanoGPT's (uint16, nothing but ids), or llm.c's and
/// modded-nanogpt's (256 int32 first: magic 20240520, version 1, number of tokens, then uint16; or magic 20240801,
/// version 7, number of tokens, then uint32). Any thread.
class TokenShard {
 public:
  /// Throws Error(bad_data) with file, offset and reason: an odd size, a foreign version, a count that the file does
  /// not hold.
  explicit TokenShard(const std::string& path);
  std::int64_t tokens() const noexcept { return tokens_; }
  const std::string& path() const noexcept { return path_; }
  /// Ids [first, first + out.size()). Opens the file for it, so that no shard stays open. Throws Error(bad_data) naming
  /// the file's offset for an id that is not below `vocab_size`.
  void read(std::int64_t first, std::int64_t vocab_size, std::span<std::int64_t> out) const;

 private:
  template <class Id>
  void read_as(const BoundedFile& file, std::int64_t first, std::int64_t vocab_size, std::span<std::int64_t> out) const;

  std::string path_;
  std::uint64_t header_bytes_ = 0, id_bytes_ = 2;
  std::int64_t tokens_ = 0;
};

/// Samples of `block_size` tokens, one after the other: input (block_size,) i64, target (block_size,) i64, the same
/// moved on by one. No sample crosses from one shard into the next.
class TokenDataset final : public Dataset {
 public:
  struct Source {
    std::string name;
    std::string text;  // bytes, or
    std::shared_ptr<const TokenShard> shard;
    std::int64_t tokens() const { return shard ? shard->tokens() : static_cast<std::int64_t>(text.size()); }
  };
  using Sources = std::shared_ptr<const std::vector<Source>>;
  /// `samples`: (source, first token) of each.
  TokenDataset(Sources sources, std::vector<std::pair<std::int32_t, std::int64_t>> samples,
               const TokenOptions& options);

  std::int64_t size() const override { return static_cast<std::int64_t>(samples_.size()); }
  Example get(std::int64_t index, const SampleContext& context) const override;
  std::int64_t tokens_per_sample() const override { return block_size_; }
  std::uint64_t files_hash() const override;
  std::string name() const override { return "tokens"; }

 private:
  Sources sources_;
  std::vector<std::pair<std::int32_t, std::int64_t>> samples_;
  std::int64_t block_size_, vocab_size_;
};

/// To train on and to measure on. Shards with `val` in their name are held out; without one, every 20th sample is. All
/// text is one source, a NUL byte between two files. Throws Error(unavailable) for a path that is not there,
/// Error(bad_data) with file, offset and reason for what can't be read, Error(usage) where the vocabulary is too small
/// for bytes or there is not one sample.
TrainAndHeldOut read_tokens(const TokenOptions& options);

}  // namespace troupe
