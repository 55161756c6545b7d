#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>

namespace troupe {

/// The kind of a micro-batch: one graph serves all of its kind. It is made of the shapes and dtypes of forward's inputs
/// and of train or eval mode. It also has whether the micro-batch is the first or last of a step: gradients are stored,
/// added or handed on by that.
std::string graph_kind(std::span<const at::Tensor> inputs, bool trains, bool first, bool last);

/// Decides which micro-batches run and which replay a graph. A kind runs kWarmUp times before it is captured: by then
/// the choices of the first runs are made (a library's kernels, the order of gradients). Pure.
class GraphKinds {
 public:
  static constexpr int kWarmUp = 3;          ///< times that a kind runs
  static constexpr std::size_t kMost = 8;    ///< kinds that are captured: each has its own memory
  static constexpr std::size_t kKnown = 64;  ///< kinds that are counted

  enum class Turn : unsigned char { run, write, replay };
  /// A micro-batch of this kind comes. `write`: from now on `replay`.
  Turn next(const std::string& kind);
  /// It could not be captured: it begins anew.
  void drop(const std::string& kind);
  /// All begin anew.
  void forget() { times_.clear(), written_ = 0; }
  std::size_t written() const noexcept { return written_; }

 private:
  std::map<std::string, int> times_;  // below 0: captured
  std::size_t written_ = 0;
};

}  // namespace troupe
