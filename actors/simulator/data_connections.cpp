#include "actors/simulator/data_connections.hpp"

#include "actors/simulator/model_collectives.hpp"

namespace troupe::simulator {

Connected DataConnections::connect(std::uint64_t generation, const End& from, const End& to) {
  if (!to.process) return Connected::refused;
  auto& from_process = *from.process->process;
  auto& to_process = *to.process->process;
  if (given_up_.contains({generation, from_process.id}) || given_up_.contains({generation, to_process.id}))
    return Connected::refused;
  const auto known = links_.find({generation, from_process.id, to.rank});
  if (known != links_.end()) return known->second.connection->open ? Connected::yes : Connected::refused;
  auto* connection = world_.connect(from_process, to_process, "data " + std::to_string(generation));
  if (!connection) return Connected::later;
  links_[{generation, from_process.id, to.rank}] = {connection, to.process};
  links_[{generation, to_process.id, from.rank}] = {connection, from.process};
  const auto closed = [generation](const caf::actor& compute, int other) {
    return [compute, generation, other] { caf::anon_send(compute, PeerGone{generation, other}); };
  };
  connection->sides[0].closed = closed(from.process->compute, to.rank);
  connection->sides[1].closed = closed(to.process->compute, from.rank);
  return Connected::yes;
}

void DataConnections::send(const RankProcess& from, const Piece& piece, int to_rank) {
  const auto found = links_.find({piece.collective.generation, from.process->id, to_rank});
  if (found == links_.end() || !found->second.connection->open) return;
  const auto link = found->second;
  world_.send(*link.connection, link.connection->side_of(*from.process), [link, piece] {
    if (link.connection->open && link.peer->process->alive) caf::anon_send(link.peer->compute, piece);
  });
}

void DataConnections::give_up(const RankProcess& process, std::uint64_t generation) {
  const int id = process.process->id;
  given_up_.insert({generation, id});
  for (auto found = links_.lower_bound({generation, id, -1});
       found != links_.end() && std::get<0>(found->first) == generation && std::get<1>(found->first) == id; ++found) {
    auto& connection = *found->second.connection;
    if (connection.open) world_.close(connection, connection.side_of(*process.process));
  }
}

}  // namespace troupe::simulator
