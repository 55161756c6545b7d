#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tensor_io/data/datasets.hpp"
#include "tensor_io/data/token_shard.hpp"

namespace troupe {

/// A language model's data, and its cut into samples.
struct TokenOptions {
  /// Files and folders. `.bin` and `.npy` files are token shards; everything else is text, whose bytes are the tokens.
  /// A folder is searched. If it has shards, they are read, but for those named `test`; else all its text files are
  /// (links and files with a NUL byte are passed over).
  std::vector<std::string> paths;
  std::int64_t block_size = 128;  ///< tokens of a sample
  std::int64_t vocab_size = 256;  ///< token ids are below it
  std::int64_t token_bits = 0;    ///< 16 or 32, of shards without a header; 0: as TokenShard finds out
};

/// Samples of `block_size` tokens, one after the other: input (block_size,) i64, target (block_size,) i64, the input
/// moved on by one. No sample crosses from one shard into the next.
class TokenDataset final : public Dataset {
 public:
  /// A text or a token shard.
  struct Source {
    std::string name;
    std::string text;  // bytes, or
    std::shared_ptr<const TokenShard> shard;
    /// Tokens in it.
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

/// The data to train on and to measure on. Shards with `val` in their name are held out; without one, every 20th sample
/// is. All text is one source, a NUL byte between two files. Throws Error(unavailable) for a missing path,
/// Error(bad_data) with file, offset and reason for data that can't be read. Throws Error(usage) if the vocabulary is
/// too small for bytes, token_bits is none of its values, or there is no sample.
TrainAndHeldOut read_tokens(const TokenOptions& options);

}  // namespace troupe
