#pragma once
#include <caf/all.hpp>

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "actors/simulator/rank_process.hpp"
#include "actors/simulator/world.hpp"

namespace troupe::simulator {

struct Piece;

/// A data connection has closed: the other rank is gone, or has given the generation up.
struct PeerGone {
  std::uint64_t generation = 0;
  int rank = 0;
};

/// Of a data connection: made, refused by the other rank, or without an answer.
enum class Connected : std::uint8_t { yes, refused, later };

/// The model of the data connections between ranks: one for each pair in each generation, until one of the two gives
/// the generation up.
class DataConnections {
 public:
  struct End {
    const RankProcess* process = nullptr;  ///< null: it is gone
    int rank = 0;
  };
  explicit DataConnections(World& world) : world_(world) {}
  /// Both ends hear PeerGone when it closes.
  Connected connect(std::uint64_t generation, const End& from, const End& to);
  void send(const RankProcess& from, const Piece& piece, int to_rank);
  void give_up(const RankProcess& process, std::uint64_t generation);

 private:
  struct Link {
    Connection* connection = nullptr;
    const RankProcess* peer = nullptr;
  };

  World& world_;
  std::map<std::tuple<std::uint64_t, int, int>, Link> links_;  // by generation, process, and rank at the other end
  std::set<std::pair<std::uint64_t, int>> given_up_;           // generation, process
};

}  // namespace troupe::simulator

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::simulator::PeerGone)
