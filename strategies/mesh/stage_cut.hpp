#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

/// The chain of a model's blocks, cut into stages. The ranks of a pipeline take turns: chunk c of rank r is stage
/// c * ranks + r. Without a pipeline there is no chain, and one rank holds everything. A value without threads.
class StageCut {
 public:
  StageCut() = default;
  /// `blocks`: their paths in the model, in the order of their calls.
  StageCut(std::vector<std::string> blocks, int ranks, int chunks);

  int blocks() const noexcept { return static_cast<int>(blocks_.size()); }
  int chunks() const noexcept { return chunks_; }
  int stages() const noexcept { return ranks_ * chunks_; }
  int stage_of(int rank, int chunk) const noexcept { return chunk * ranks_ + rank; }
  /// The block that a parameter or buffer lies in; -1: outside of all.
  int block_of(std::string_view name) const;

  /// By the cost of each block (balance_stages). Throws Error(usage) as that does.
  void cut_by(const std::vector<double>& costs);
  void cut_at(std::vector<int> borders) { borders_ = std::move(borders); }
  bool is_cut() const noexcept { return !borders_.empty(); }
  /// First block of each stage, and behind the last; empty before the cut.
  const std::vector<int>& borders() const noexcept { return borders_; }

  // After the cut.
  int first_block(int stage) const { return borders_[static_cast<std::size_t>(stage)]; }
  int end_block(int stage) const { return first_block(stage + 1); }  ///< behind its last
  int stage_with(int block) const;
  /// A rank holds the blocks of its stages, and what is outside of all.
  bool holds(int rank, int block) const { return block < 0 || stage_with(block) % ranks_ == rank; }

  std::string describe() const;  ///< `stages of 2+2 blocks`, `stages of blocks to be measured`

 private:
  std::vector<std::string> blocks_;
  int ranks_ = 1, chunks_ = 1;
  std::vector<int> borders_;
};

}  // namespace troupe
