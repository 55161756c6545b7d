#pragma once
#include <caf/all.hpp>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages/membership.hpp"
#include "actors/simulator/model_communicator.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/communicator/collective_ledger.hpp"

namespace troupe::simulator {

/// One collective of one generation, the same on all ranks that agree.
struct CollectiveId {
  std::uint64_t generation = 0;
  std::size_t communicator = 0;
  std::uint64_t sequence = 0, fingerprint = 0;
  auto operator<=>(const CollectiveId&) const = default;
};
/// What a rank gives to a collective.
struct Piece {
  CollectiveId collective;
  int rank = 0;
  std::string bytes;
};

/// A rank's collectives: the one that it is in, the pieces that have come for this and for later ones, and the reason
/// why its generation can have no more. It sends nothing. On the rank's actor.
class ModelCollectives {
 public:
  static constexpr std::size_t kProgram = 0, kBuckets = 1;  ///< the communicators
  using Communicators = std::array<std::shared_ptr<ModelCommunicator>, 2>;
  using Pieces = std::vector<std::string>;  ///< by rank

  void enter(const Membership& membership, int rank);
  /// Makes the generation's communicators. Those of the last generation stay until then.
  const Communicators& connect(const std::function<void(const ErrorReport&)>& aborted);
  /// Of those that begin from now on, on both communicators.
  void set_step(std::int64_t step);

  /// Returns this rank's piece, for all others. complete() returns the call of `then`.
  Piece begin(std::size_t communicator, const CollectiveRecord& record, std::string bytes,
              std::function<void(const Pieces&)> then);
  /// Pieces of a former generation are dropped, those of a later one kept.
  void add(const Piece& piece);
  /// Ends the collective if all pieces have come: how the rank goes on. Else empty.
  std::function<void()> complete();
  void give_up() noexcept { current_.reset(); }
  bool under_way() const noexcept { return current_.has_value(); }
  /// Ranks whose piece for the collective under way has not come; none if there is no such collective.
  std::vector<int> missing() const;

  /// False: it is of another generation, or is known already.
  bool abort(std::uint64_t generation, const ErrorReport& reason);
  bool lose_peer(std::uint64_t generation, const ErrorReport& reason);
  /// Why the generation can have no more collectives.
  const std::optional<ErrorReport>& broken() const noexcept { return broken_; }

 private:
  struct Current {
    CollectiveId id;
    std::function<void(const Pieces&)> then;
  };
  std::uint64_t generation_ = 0;
  int rank_ = 0, world_size_ = 1;
  Communicators communicators_;
  std::optional<Current> current_;
  std::map<CollectiveId, std::map<int, std::string>> pieces_;  // by rank
  std::optional<ErrorReport> broken_;
  bool aborted_ = false;
};

}  // namespace troupe::simulator

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::simulator::Piece)
