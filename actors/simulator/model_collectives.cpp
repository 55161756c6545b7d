#include "actors/simulator/model_collectives.hpp"

#include <utility>

namespace troupe::simulator {

void ModelCollectives::enter(const Membership& membership, int rank) {
  generation_ = membership.generation;
  rank_ = rank;
  world_size_ = membership.world_size();
  current_.reset();
  pieces_.erase(pieces_.begin(), pieces_.lower_bound({.generation = generation_}));
  broken_.reset();
  aborted_ = false;
}

const ModelCollectives::Communicators& ModelCollectives::connect(
    const std::function<void(const ErrorReport&)>& aborted) {
  CommunicatorOptions options;
  options.rank = rank_;
  options.world_size = world_size_;
  options.name = "program";
  communicators_[kProgram] = std::make_shared<ModelCommunicator>(options, aborted);
  options.name = "buckets";
  communicators_[kBuckets] = std::make_shared<ModelCommunicator>(options, aborted);
  return communicators_;
}

void ModelCollectives::set_step(std::int64_t step) {
  for (const auto& communicator : communicators_) communicator->ledger().set_step(step);
}

Piece ModelCollectives::begin(std::size_t communicator, const CollectiveRecord& record, std::string bytes,
                              std::function<void(const Pieces&)> then) {
  auto& ledger = communicators_[communicator]->ledger();
  ledger.set_step(record.step);
  const auto begun = ledger.begin(record);
  const CollectiveId id{generation_, communicator, begun.sequence, begun.fingerprint()};
  current_ = Current{id, std::move(then)};
  Piece mine{id, rank_, std::move(bytes)};
  add(mine);
  return mine;
}

void ModelCollectives::add(const Piece& piece) {
  if (piece.collective.generation >= generation_) pieces_[piece.collective][piece.rank] = piece.bytes;
}

std::function<void()> ModelCollectives::complete() {
  if (!current_) return nullptr;
  const auto come = pieces_.find(current_->id);
  if (come == pieces_.end() || come->second.size() < static_cast<std::size_t>(world_size_)) return nullptr;
  Pieces pieces;
  for (auto& [rank, bytes] : come->second) pieces.push_back(std::move(bytes));
  pieces_.erase(come);
  communicators_[current_->id.communicator]->ledger().finish();
  auto ended = std::exchange(current_, std::nullopt);
  return [then = std::move(ended->then), pieces = std::move(pieces)] { then(pieces); };
}

std::vector<int> ModelCollectives::missing() const {
  if (!current_) return {};
  std::vector<int> ranks;
  const auto found = pieces_.find(current_->id);
  for (int rank = 0; rank < world_size_; ++rank) {
    if (found == pieces_.end() || !found->second.contains(rank)) ranks.push_back(rank);
  }
  return ranks;
}

bool ModelCollectives::abort(std::uint64_t generation, const ErrorReport& reason) {
  if (generation != generation_ || aborted_) return false;
  aborted_ = true;
  broken_ = reason;
  return true;
}

bool ModelCollectives::lose_peer(std::uint64_t generation, const ErrorReport& reason) {
  if (generation != generation_ || broken_) return false;
  broken_ = reason;
  return true;
}

}  // namespace troupe::simulator
