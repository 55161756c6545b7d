#include "actors/compute/vote_exchange.hpp"

#include <algorithm>
#include <cstring>
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
  log_.begin_step();
  mine_ = Vote{};
  mine_.step = core_.step();
}

std::vector<Vote> VoteExchange::exchange() {
  mine_.dataset_size = dataset_size_;
  mine_.data_hash = data_hash_;
  const auto logged = log_.of_step().encode();
  mine_.logged_bytes = static_cast<std::uint32_t>(logged.size());
  mine_.ranks = static_cast<std::uint32_t>(core_.world_size());
  encode_vote(mine_, {in_.data_ptr<std::uint8_t>(), static_cast<std::size_t>(in_.numel())});
  fault_point("vote", core_.step());
  core_.protocol.vote();
  core_.program_communicator().all_gather(out_, in_, "vote");
  std::string votes(reinterpret_cast<const char*>(out_.data_ptr<std::uint8_t>()),
                    static_cast<std::size_t>(out_.numel()));
  votes += gather_logged(logged);
  core_.protocol.votes_came(votes);
  fault_point("voted", core_.step());
  return decode(votes);
}

// Collective, in steps in which a rank logged something. Part of the votes: a rank that commits a step by them,
// although it lost the others meanwhile, has it too.
std::string VoteExchange::gather_logged(const std::string& mine) {
  const auto ranks = core_.world_size();
  const auto vote = out_.numel() / ranks;
  std::vector<std::size_t> bytes;
  for (int r = 0; r < ranks; ++r) {
    VoteNumbers numbers;
    std::memcpy(&numbers, out_.data_ptr<std::uint8_t>() + r * vote, sizeof numbers);
    bytes.push_back(numbers.logged_bytes);
  }
  const auto most = static_cast<std::int64_t>(*std::max_element(bytes.begin(), bytes.end()));
  if (most == 0) return {};
  const auto in = at::zeros({most}, at::kByte), out = at::zeros({most * ranks}, at::kByte);
  std::memcpy(in.data_ptr<std::uint8_t>(), mine.data(), mine.size());
  core_.program_communicator().all_gather(out, in, "logged values");
  std::string logged;
  for (int r = 0; r < ranks; ++r)
    logged.append(reinterpret_cast<const char*>(out.data_ptr<std::uint8_t>()) + r * most,
                  bytes[static_cast<std::size_t>(r)]);
  return logged;
}

bool VoteExchange::scaler_looks() const {
  const auto& scaler = core_.loss_scaler;
  return scaler.enabled() && !scaler.exhausted();
}

Decision VoteExchange::decide_by(const std::vector<Vote>& votes, std::optional<std::int64_t> measured) const {
  const bool stop = core_.options.training.on_not_finite == "stop";
  // An overflow at a large loss scale is what the scaler looks for; a loss that is not finite, or an overflow without
  // scale, is not.
  return decide(votes, core_.strategy->parameter_names(), {stop, stop && !scaler_looks()}, measured);
}

void VoteExchange::count_skipped(const Decision& decision) {
  if (!decision.not_finite) skipped_ = 0;
  if (!decision.not_finite || (scaler_looks() && !decision.loss_not_finite)) return;
  const auto most = core_.options.training.max_skipped_steps;
  if (++skipped_ < most || most == 0) return;
  throw Error(ErrorReport{ErrorCode::not_finite, decision.culprit, "compute", core_.step(), "vote",
                          std::to_string(skipped_) + (skipped_ == 1 ? " step was" : " steps in a row were") +
                              " skipped, the last because " + decision.reason,
                          "lower lr, clip with clip_norm, look at the data, or raise max_skipped_steps"});
}

}  // namespace troupe
