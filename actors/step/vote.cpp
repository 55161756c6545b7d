#include "actors/step/vote.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "actors/messages/rank_list.hpp"
#include "actors/step/minority.hpp"

namespace troupe {
namespace {

[[noreturn]] void refuse(std::span<const Vote> votes, const std::string& cause, const char* remedy) {
  throw Error(ErrorReport{ErrorCode::mismatch, -1, "compute", votes[0].step, "vote", cause, remedy});
}

// Some ranks have no loss: earlier stages of a pipeline.
void check_kinds_of_loss(std::span<const Vote> votes) {
  std::vector<int> means, sums;
  for (std::size_t r = 0; r < votes.size(); ++r) {
    if (votes[r].elements == Vote::kMeans) means.push_back(static_cast<int>(r));
    if (votes[r].elements >= 0) sums.push_back(static_cast<int>(r));
  }
  if (means.empty() || sums.empty()) return;
  refuse(votes, rank_list(sums) + " gave the sum of a loss, and " + rank_list(means) + " a mean",
         "give Loss::sum on every rank, or on none");
}

// What the sums of all ranks are over: nothing where losses are means.
std::optional<double> elements_of(std::span<const Vote> votes) {
  std::optional<double> elements;
  for (const auto& vote : votes) {
    if (vote.elements >= 0) elements = elements.value_or(0) + static_cast<double>(vote.elements);
  }
  return elements;
}

void divide_by_elements(Decision& decision, std::span<const Vote> votes, double loss_sum) {
  const auto elements = elements_of(votes);
  if (!elements) return;
  decision.loss = decision.max_loss = 0;
  if (*elements == 0) {
    if (decision.not_finite) return;
    decision.commit = false;
    decision.reason = "no element of any rank's batch counts in the loss";
    return;
  }
  double divisor = 1;
  decision.max_loss = -std::numeric_limits<double>::infinity();
  for (const auto& vote : votes) {
    if (vote.elements < 0) continue;
    divisor = vote.gradient_divisor;
    if (vote.elements > 0)
      decision.max_loss = std::max(decision.max_loss, vote.loss_sum / static_cast<double>(vote.elements));
  }
  decision.loss = loss_sum / *elements;
  decision.gradient_factor = divisor / *elements;
  decision.gradient_norm *= decision.gradient_factor;
}

}  // namespace

std::size_t vote_bytes(std::size_t parameters) noexcept { return sizeof(VoteNumbers) + (parameters + 7) / 8; }

void encode_vote(const Vote& vote, std::span<std::uint8_t> bytes) {
  const VoteNumbers& numbers = vote;
  std::memset(bytes.data(), 0, bytes.size());
  std::memcpy(bytes.data(), &numbers, sizeof numbers);
  for (std::size_t i = 0; i < vote.used.size(); ++i) {
    auto& byte = bytes[sizeof numbers + i / 8];
    if (vote.used[i]) byte = static_cast<std::uint8_t>(byte | (1u << (i % 8)));
  }
}

Vote decode_vote(std::span<const std::uint8_t> bytes, std::size_t parameters) {
  VoteNumbers numbers;
  std::memcpy(&numbers, bytes.data(), sizeof numbers);
  Vote vote{numbers, std::vector<bool>(parameters), {}};
  for (std::size_t i = 0; i < parameters; ++i) vote.used[i] = (bytes[sizeof numbers + i / 8] >> (i % 8)) & 1;
  return vote;
}

std::vector<Vote> decode_votes(std::string_view votes, std::size_t parameters) {
  const auto bytes = vote_bytes(parameters);
  std::vector<Vote> decoded;
  const auto more = [&] { return decoded.empty() || decoded[0].ranks == 0 || decoded.size() < decoded[0].ranks; };
  std::size_t begin = 0;
  for (; begin + bytes <= votes.size() && more(); begin += bytes)
    decoded.push_back(decode_vote({reinterpret_cast<const std::uint8_t*>(votes.data()) + begin, bytes}, parameters));
  if (decoded.empty() || decoded[0].ranks == 0) return decoded;
  for (auto& vote : decoded) {
    if (vote.logged_bytes > votes.size() - begin)
      throw Error(ErrorCode::bad_data, "votes", "what a rank logged is cut short");
    vote.logged = LoggedValues::decode(votes.substr(begin, vote.logged_bytes));
    begin += vote.logged_bytes;
  }
  return decoded;
}

Decision decide(std::span<const Vote> votes, std::span<const std::string> parameter_names, StopOn stop,
                std::optional<std::int64_t> measured) {
  if (const auto odd = minority(votes, [](const Vote& v) { return v.step; }); !odd.empty()) {
    const auto step = votes[static_cast<std::size_t>(odd[0])].step;
    refuse(votes, rank_list(odd) + " voted on step " + std::to_string(step) + ", the others did not",
           "every rank must call backward and step equally often");
  }
  if (const auto odd = minority(votes, [](const Vote& v) { return v.layout_hash; }); !odd.empty())
    refuse(votes,
           rank_list(odd) +
               " used a different parameter layout (shapes, dtypes, requires_grad or buckets), or a different compiled "
               "model, "
               "than the others",
           "build the same model and change requires_grad on every rank alike; put the same files on every host");
  if (const auto odd = minority(votes, [](const Vote& v) { return v.dataset_size; }); !odd.empty()) {
    const auto size = votes[static_cast<std::size_t>(odd[0])].dataset_size;
    const auto other = std::find_if(votes.begin(), votes.end(), [&](const Vote& v) { return v.dataset_size != size; });
    refuse(votes,
           rank_list(odd) + " drew from a data set of " + std::to_string(size) + " samples, the others from one of " +
               std::to_string(other->dataset_size),
           "put the same files on every host");
  }
  if (const auto odd = minority(votes, [](const Vote& v) { return v.data_hash; }); !odd.empty())
    refuse(votes,
           rank_list(odd) + " read different files from the others: their names or lengths below data_dir differ",
           "put the same files on every host");
  check_kinds_of_loss(votes);
  Decision decision;
  decision.used.assign(votes[0].used.size(), false);
  double loss_sum = 0, max_loss = -std::numeric_limits<double>::infinity();
  for (std::size_t r = 0; r < votes.size(); ++r) {
    const auto& vote = votes[r];
    loss_sum += vote.loss_sum;
    if (vote.samples > 0) max_loss = std::max(max_loss, vote.loss_sum / vote.samples);
    decision.samples += vote.samples;
    decision.correct += vote.correct;
    // NaN stays: std::max would lose it.
    if (std::isfinite(decision.gradient_norm) && !(vote.gradient_norm <= decision.gradient_norm))
      decision.gradient_norm = vote.gradient_norm;
    if (vote.stop_signal == VoteNumbers::kLeaves) {
      decision.leaving.push_back(static_cast<int>(r));
    } else if (decision.stop_signal == 0) {
      decision.stop_signal = vote.stop_signal;
    }
    decision.logged.add(vote.logged);
    for (std::size_t i = 0; i < vote.used.size(); ++i) decision.used[i] = decision.used[i] || vote.used[i];
    // A rank's own loss says more than gradients, of which a device's are looked at reduced: those all ranks see alike.
    const bool first = !decision.not_finite || (vote.not_finite_loss && !decision.loss_not_finite);
    decision.loss_not_finite = decision.loss_not_finite || vote.not_finite_loss;
    if (first && (vote.not_finite_loss || vote.not_finite_parameter >= 0)) {
      decision.not_finite = true;
      decision.culprit = static_cast<std::int32_t>(r);
      const auto index = static_cast<std::size_t>(vote.not_finite_parameter);
      decision.reason = vote.not_finite_loss
                            ? "the loss is not finite"
                            : "the gradient of " +
                                  (index < parameter_names.size() ? parameter_names[index] : "a parameter") +
                                  (vote.made_by_hook ? " overflows comm_hook's type" : " is not finite");
    }
  }
  decision.rebuild = votes[0].rebuild != 0;
  decision.loss = decision.samples > 0 ? loss_sum / decision.samples : 0;
  decision.max_loss = decision.samples > 0 ? max_loss : 0;
  if (!decision.not_finite && !std::isfinite(decision.gradient_norm)) {
    decision.not_finite = true;
    decision.reason = "the reduced gradient is not finite, although each rank's is: the sum overflows";
  }
  divide_by_elements(decision, votes, loss_sum);
  if (decision.not_finite) {
    decision.commit = false;
    if (decision.loss_not_finite ? stop.loss : stop.gradient) {
      const bool by_hook = !decision.loss_not_finite && decision.culprit >= 0 &&
                           votes[static_cast<std::size_t>(decision.culprit)].made_by_hook != 0;
      throw Error(ErrorReport{ErrorCode::not_finite, decision.culprit, "compute", measured.value_or(votes[0].step),
                              "vote", decision.reason,
                              by_hook ? "set comm_hook to bf16 or none, or on_not_finite to skip"
                                      : "lower lr, clip with clip_norm, or set on_not_finite to skip"});
    }
  }
  return decision;
}

}  // namespace troupe
