#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>

namespace troupe {

/// What micro-batches must have in common so that one graph is the work of all of them: shapes and dtypes of what
/// forward is given, whether the model is in train mode, and whether they are a step's first and last one, since
/// gradients are stored, added or handed on by that.
std::string graph_kind(std::span<const at::Tensor> inputs, bool trains, bool first, bool last);

/// Which micro-batches run, and which are a graph. A kind runs so often before it is written down that whatever is
/// chosen at the first times (a library's kernels, the order of gradients) has been chosen. Pure.
class GraphKinds {
 public:
  static constexpr int kWarmUp = 3;          ///< times that a kind runs
  static constexpr std::size_t kMost = 8;    ///< kinds that are written down: each has memory of its own
  static constexpr std::size_t kKnown = 64;  ///< kinds that are counted

  enum class Turn : unsigned char { run, write, replay };
  /// A micro-batch of this kind comes. `write`: from now on `replay`.
  Turn next(const std::string& kind);
  /// It could not be written: it begins anew.
  void drop(const std::string& kind);
  /// All begin anew.
  void forget() { times_.clear(), written_ = 0; }
  std::size_t written() const noexcept { return written_; }

 private:
  std::map<std::string, int> times_;  // below 0: written
  std::size_t written_ = 0;
};

}  // namespace troupe
