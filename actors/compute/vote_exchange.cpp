#include "actors/compute/vote_exchange.hpp"

#include <string>

#include "tensor_io/base/fault_point.hpp"

namespace troupe {

void VoteExchange::allocate() {
  const auto bytes = static_cast<std::int64_t>(vote_bytes(core_.strategy->parameter_names().size()));
  in_ = at::zeros({bytes}, at::kByte);
  out_ = at::zeros({bytes * core_.world_size()}, at::kByte);
}

void VoteExchange::set_dataset(std::int64_t samples, std::uint64_t files_hash) noexcept {
  dataset_size_ = samples;
  data_hash_ = static_cast<std::uint32_t>(files_hash ^ files_hash >> 32U);
}

void VoteExchange::begin() {
  mine_ = Vote{};
  mine_.step = core_.step();
}

std::vector<Vote> VoteExchange::exchange() {
  mine_.dataset_size = dataset_size_;
  mine_.data_hash = data_hash_;
  encode_vote(mine_, {in_.data_ptr<std::uint8_t>(), static_cast<std::size_t>(in_.numel())});
  fault_point("vote", core_.step());
  core_.protocol.vote();
  core_.program_communicator().all_gather(out_, in_, "vote");
  const std::string votes(reinterpret_cast<const char*>(out_.data_ptr<std::uint8_t>()),
                          static_cast<std::size_t>(out_.numel()));
  core_.protocol.votes_came(votes);
  fault_point("voted", core_.step());
  return decode(votes);
}

std::vector<Vote> VoteExchange::decode(std::string_view votes) const {
  const auto parameters = core_.strategy->parameter_names().size();
  const auto bytes = vote_bytes(parameters);
  std::vector<Vote> decoded;
  for (std::size_t begin = 0; begin + bytes <= votes.size(); begin += bytes) {
    decoded.push_back(decode_vote({reinterpret_cast<const std::uint8_t*>(votes.data()) + begin, bytes}, parameters));
  }
  return decoded;
}

Decision VoteExchange::decide_by(const std::vector<Vote>& votes, std::optional<std::int64_t> measured) const {
  const bool stop = core_.options.training.on_not_finite == "stop";
  const auto& scaler = core_.loss_scaler;
  // An overflow at a large loss scale is what the scaler looks for; a loss that is not finite, or an overflow without
  // scale, is not.
  return decide(votes, core_.strategy->parameter_names(), {stop, stop && (!scaler.enabled() || scaler.exhausted())},
                measured);
}

}  // namespace troupe
