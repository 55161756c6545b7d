#include "actors/compute/step_pace.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "actors/strategy/saved_state.hpp"

namespace troupe {

void StepPace::split_batches(std::int64_t samples, int ranks) {
  Balance balance;
  if (const auto wrong = Balance::parse(core_.options.training.balance, balance); !wrong.empty())
    throw Error(ErrorCode::usage, "balance", wrong);
  balance.check(ranks);
  const auto refuse = [this](const char* why, const char* instead) {
    throw Error(ErrorCode::usage, "balance", "with strategy " + core_.strategy->name() + " " + why, instead);
  };
  if (core_.strategy && balance.by != Balance::By::equal) {
    if (balance.by == Balance::By::speed && core_.strategy->saved_state().shards_state())
      refuse("ranks wait for each other within forward and backward", "give weights, or train with ddp");
    if (core_.capability<Placement>() != nullptr)
      refuse("several ranks work on the same samples", "set it to equal; pipeline_costs balances stages");
    if (core_.shares_per_rank() > 0) refuse("ranks take parts of a batch on demand", "set it to equal");
  }
  split_ = BatchSplit(std::move(balance), samples, core_.world_size());
}

void StepPace::reset() {
  watch_.reset();
  split_.reset(core_.world_size());
}

void StepPace::watch(const std::vector<Vote>& votes, StepReport& report) {
  std::vector<SectionTimes> times;
  std::vector<double> totals;
  times.reserve(votes.size());
  for (const auto& vote : votes) {
    times.push_back(vote.own);
    totals.push_back(vote.own.total_ms());
  }
  const auto at = "step " + std::to_string(core_.step()) + ": ";
  if (split_.add(totals)) report.notices.push_back(at + split_.describe());
  const auto before = watch_.slow();
  const bool changed = watch_.add(times);
  report.own = std::move(times);
  for (auto straggler : watch_.slow()) {
    straggler.host = core_.membership().members[static_cast<std::size_t>(straggler.rank)].host;
    const auto same = [&](const Straggler& other) { return other.rank == straggler.rank; };
    if (changed && std::none_of(before.begin(), before.end(), same))
      report.notices.push_back(at + straggler.describe());
    report.stragglers.push_back(std::move(straggler));
  }
  if (!changed) return;
  for (const auto& straggler : before) {
    const auto same = [&](const Straggler& other) { return other.rank == straggler.rank; };
    if (std::none_of(watch_.slow().begin(), watch_.slow().end(), same))
      report.notices.push_back(at + "rank " + std::to_string(straggler.rank) + " keeps up again");
  }
}

}  // namespace troupe
