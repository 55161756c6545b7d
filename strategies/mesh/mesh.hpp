#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "tensor_io/base/error.hpp"

namespace troupe {

/// The layout of a job's ranks: `tp` ranks share each layer, and `fsdp` ranks hold a shard each of such a part. These
/// see different samples, as do `dp` copies of it all. `pp` stages follow each other.
///
/// Rank = ((pp * dp_size + dp) * fsdp_size + fsdp) * tp_size + tp: ranks that communicate most are neighbours, and so
/// on one host if hosts hold neighbours.
struct Mesh {
  int dp = 1, tp = 1, pp = 1, fsdp = 1;

  struct Place {
    int dp = 0, tp = 0, pp = 0, fsdp = 0;
    bool operator==(const Place&) const = default;
  };
  int ranks() const noexcept { return dp * fsdp * tp * pp; }
  Place place_of(int rank) const noexcept;
  int rank_at(const Place& place) const noexcept;
  /// Ranks that hold the same part of the model as `rank`, in the order of dp: they have the same state.
  std::vector<int> replicas_of(int rank) const;
  bool operator==(const Mesh&) const = default;
  std::string to_string() const;  ///< `dp=2,tp=1,pp=2`; fsdp if it is above 1
};

/// Of a mesh that can't be: Error(usage).
Error mesh_refused(const std::string& cause, const std::string& remedy = {});

/// `dp=2,fsdp=2,tp=2,pp=2`, each at most once, missing ones 1; without dp, dp is the rest of `ranks`. Empty: all ranks
/// are in `whole`, "tp" or "pp". Throws Error(usage) on one line for an unknown word, a wrong number, or a product that
/// is not `ranks`.
Mesh parse_mesh(std::string_view text, int ranks, std::string_view whole);

}  // namespace troupe
