// Compute between the vote and the commit: are the replicas still equal, and does every rank keep up?
#include "actors/compute/compute.hpp"
#include "actors/compute/divergence.hpp"
#include "actors/messages/rank_list.hpp"
#include "actors/strategy/peer_waits.hpp"
#include "actors/strategy/saved_state.hpp"

namespace troupe {

void Compute::mark_time() {
  mark_ = std::chrono::steady_clock::now();
  waited_at_mark_ = std::chrono::nanoseconds(0);
  if (services_.program_lane) waited_at_mark_ += services_.program_lane->ledger().time_inside();
  if (const auto* waits = capability<PeerWaits>()) waited_at_mark_ += waits->time_waited();
}

// Without what the compute thread waited for other ranks.
float Compute::own_time_since_mark() {
  const auto mark = mark_;
  const auto before = waited_at_mark_;
  mark_time();
  const auto waited = std::max(std::chrono::nanoseconds(0), waited_at_mark_ - before);
  inside_ms_ += std::chrono::duration<double, std::milli>(waited).count();
  return std::max(0.0f, std::chrono::duration<float, std::milli>(mark_ - mark - waited).count());
}

std::vector<TimedInterval> Compute::take_device_waits() {
  auto waits = services_.program_lane->take_device_waits();
  if (auto* within = capability<PeerWaits>()) {
    for (auto& wait : within->take_device_waits()) waits.push_back(std::move(wait));
  }
  return waits;
}

void Compute::begin_section() {
  mark_time();
  if (strategy_) (void)take_device_waits();  // of a validation, or of a step that came to nothing
  device_times_.begin_section();
}

void Compute::end_section(DeviceTimes::Part part) {
  const auto took = own_time_since_mark();
  (part == DeviceTimes::Part::forward ? own_.forward_ms : own_.backward_ms) += took;
  device_times_.end_section(part, take_device_waits());
}

// By the device's clock, and one share at a time: where the host does not wait for the device, a step's times come with
// a later one.
void Compute::tell_device_times(StepReport& report) {
  if (services_.program_lane->device().is_cpu()) return;
  const auto times = device_times_.take();
  report.exposed_ms = times.exposed;
  report.reduce_ms = times.reduce;
  inside_ms_ = times.inside;
  own_.forward_ms = static_cast<float>(times.forward);
  own_.backward_ms = static_cast<float>(times.backward);
}

// Not the buffers: forward has changed them, on each rank by its own samples.
NamedTensors Compute::replicated_parameters() {
  auto tensors = strategy_->replicated_tensors();
  std::erase_if(tensors,
                [buffers = model_->named_buffers()](const auto& entry) { return buffers.contains(entry.first); });
  return tensors;
}

bool Compute::verifies_now() const {
  const auto every = options_.training.verify_every;
  return every != 0 && (steps_done() + 1) % every == 0 && world_size() > 1 && strategy_->replicas_equal();
}

std::uint64_t Compute::parameter_hash_if_due() {
  if (!verifies_now()) return 0;
  const auto parameters = replicated_parameters();
  return parameters.empty() ? 0 : hash_tensors(parameters);
}

bool Compute::heal_diverged(const std::vector<Vote>& votes, Optimizer& optimizer, StepReport& report) {
  const auto divergence = find_divergence(votes);
  if (!divergence) return false;
  std::string hosts;
  for (const int rank : divergence->diverged) {
    const auto& host = membership_.members[static_cast<std::size_t>(rank)].host;
    hosts += (hosts.empty() ? "" : ", ") + host;
  }
  const auto& rule = options_.training.on_divergence;
  if (rule == "stop" || (!divergence->majority && rule != "rank_0")) {
    throw Error(ErrorReport{
        ErrorCode::mismatch, divergence->diverged.front(), "compute", steps_done(), "comparing parameters",
        divergence->describe() + " (" + hosts + ")" +
            (divergence->majority ? "" : ", and no side has more than half of the ranks: nobody knows which is right"),
        "check the memory of these hosts, start again with --resume latest; on_divergence says what to do instead"});
  }
  HealRoles roles{divergence->trusted.front(), std::vector<bool>(votes.size(), false), false};
  for (const int rank : divergence->diverged) roles.newcomer[static_cast<std::size_t>(rank)] = true;
  if (roles.newcomer[static_cast<std::size_t>(rank())]) protocol_.lost_state();
  heal_tensors(replicated_parameters(), roles, *services_.program_lane, "model");
  heal_optimizer(optimizer, roles, *services_.program_lane);
  report.notices.push_back("step " + std::to_string(steps_done()) + ": " + divergence->describe() + " (" + hosts +
                           "): healed from " + rank_list(divergence->trusted) +
                           (divergence->majority ? "" : ", rank 0's side"));
  return true;
}

// The average has a gradient of parameters that were wrong. What the decision says of the plan and of used parameters
// holds for the step as it comes again.
void Compute::run_step_again(const Decision& decision, StepReport& report) {
  strategy_->end_step(decision.used, decision.rebuild, false);
  forget_micro_batches();
  move_on();
  report.committed = false;
  report.repeat = true;
  report.reason = "a replica was healed";
}

void Compute::share_batches(std::int64_t samples, int ranks) {
  Balance balance;
  if (const auto wrong = Balance::parse(options_.training.balance, balance); !wrong.empty())
    throw Error(ErrorCode::usage, "balance", wrong);
  balance.check(ranks);
  if (balance.by == Balance::By::speed && strategy_ && strategy_->saved_state().shards_state()) {
    throw Error(ErrorCode::usage, "balance",
                "with strategy " + strategy_->name() + " ranks wait for each other within forward and backward",
                "give weights, or train with ddp");
  }
  if (balance.by != Balance::By::equal && capability<Placement>() != nullptr) {
    throw Error(ErrorCode::usage, "balance",
                "with strategy " + strategy_->name() + " several ranks work on the same samples",
                "set it to equal; pipeline_costs balances stages");
  }
  if (balance.by != Balance::By::equal && shares_per_rank() > 0) {
    throw Error(ErrorCode::usage, "balance",
                "with strategy " + strategy_->name() + " ranks take parts of a batch by demand", "set it to equal");
  }
  shares_ = BatchShares(std::move(balance), samples, world_size());
}

void Compute::watch_pace(const std::vector<Vote>& votes, StepReport& report) {
  std::vector<SectionTimes> times;
  std::vector<double> totals;
  times.reserve(votes.size());
  for (const auto& vote : votes) {
    times.push_back(vote.own);
    totals.push_back(vote.own.total_ms());
  }
  if (shares_.add(totals)) report.notices.push_back("step " + std::to_string(steps_done()) + ": " + shares_.describe());
  const auto before = pace_.slow();
  const bool changed = pace_.add(times);
  report.own = std::move(times);
  for (auto straggler : pace_.slow()) {
    straggler.host = membership_.members[static_cast<std::size_t>(straggler.rank)].host;
    const auto same = [&](const Straggler& other) { return other.rank == straggler.rank; };
    if (changed && std::none_of(before.begin(), before.end(), same))
      report.notices.push_back("step " + std::to_string(steps_done()) + ": " + straggler.describe());
    report.stragglers.push_back(std::move(straggler));
  }
  if (!changed) return;
  for (const auto& straggler : before) {
    const auto same = [&](const Straggler& other) { return other.rank == straggler.rank; };
    if (std::none_of(pace_.slow().begin(), pace_.slow().end(), same))
      report.notices.push_back("step " + std::to_string(steps_done()) + ": rank " + std::to_string(straggler.rank) +
                               " keeps up again");
  }
}

}  // namespace troupe
