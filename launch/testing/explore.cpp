// Cluster::explore: drawn faults and orders, and what is left of those that fail.
#include <algorithm>
#include <iterator>
#include <random>
#include <set>

#include "launch/testing/cluster.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe::testing {
namespace {

using namespace std::chrono_literals;

// Places that strategies come by in a step; by `collective` those with buckets alone.
constexpr const char* kPlaces[] = {"data", "forward", "backward",  "collective", "reduced",
                                   "vote", "voted",   "committed", "optimizer"};

// How many ranks a fault may lose: one that stands still, or is not heard of, may count as lost.
int may_lose(const ClusterFault& fault, const ClusterOptions& cluster) {
  using Kind = ClusterFault::Kind;
  switch (fault.kind) {
    case Kind::kill:
    case Kind::stop:
    case Kind::drop:
    case Kind::delay: return 1;
    case Kind::cut: return cluster.ranks_per_host;
    default: return 0;
  }
}

// Two ranks are lost, or one before the first copy of its shard.
bool may_lose_state(const std::vector<ClusterFault>& faults, const ClusterOptions& cluster) {
  int lost = 0;
  for (const auto& fault : faults) {
    lost += may_lose(fault, cluster);
    const auto& at = fault.hits_message() ? fault.message.after.value_or(At{}) : fault.at;
    if (at.step == 0) return true;
  }
  return lost > 1;
}

bool had_as_many_ranks(const TrainedRun& run) {
  const auto& all = run.memberships();
  return std::all_of(all.begin(), all.end(),
                     [&](const auto& seen) { return seen.slots.size() == all.front().slots.size(); });
}

// The first tensor that differs by more than sums in another order do; empty: none.
std::string far_off(const Weights& weights, const Weights& others) {
  for (const auto& [name, tensor] : others.tensors()) {
    if (!at::allclose(weights.at(name).to(at::kDouble), tensor.to(at::kDouble), 1e-4, 1e-5))
      return name + ", by more than rounding";
  }
  return {};
}

class Draw {
 public:
  Draw(std::uint64_t seed, const ClusterOptions& cluster, std::int64_t steps)
      : engine_(seed), cluster_(cluster), steps_(steps) {}

  // What a network that loses nothing may do, and nothing else: messages are not dropped and not swapped.
  std::vector<ClusterFault> faults(int most) {
    std::vector<ClusterFault> drawn;
    for (auto n = between(0, most); n > 0; --n) drawn.push_back(fault());
    return drawn;
  }

 private:
  using Kind = ClusterFault::Kind;

  ClusterFault fault() {
    std::vector<Kind> kinds{Kind::kill, Kind::kill, Kind::kill, Kind::stop, Kind::delay};
    if (cluster_.hosts > 1 && !cluster_.parallel) kinds.push_back(Kind::cut);
    ClusterFault fault;
    fault.kind = kinds[static_cast<std::size_t>(between(0, static_cast<int>(kinds.size()) - 1))];
    At at{kPlaces[between(0, static_cast<int>(std::size(kPlaces)) - 1)],
          between(0, std::max<std::int64_t>(0, steps_ - 1))};
    const auto rank = static_cast<int>(between(0, cluster_.hosts * cluster_.ranks_per_host - 1));
    if (fault.kind != Kind::kill) fault.lasts = between(1, 8) * 500ms;
    if (fault.kind == Kind::cut) {
      if (between(0, 2) == 0) fault.lasts *= 10;
      fault.host.number = static_cast<int>(between(0, cluster_.hosts - 2));
      fault.other.number = static_cast<int>(between(fault.host.number + 1, cluster_.hosts - 1));
    }
    if (fault.kind == Kind::delay) {
      (between(0, 1) == 0 ? fault.message.from : fault.message.to) = Rank{rank};
      fault.message.after = std::move(at);
    } else {
      fault.at = std::move(at);
      if (fault.kind != Kind::cut) fault.rank = rank;
    }
    return fault;
  }

  std::int64_t between(std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(most - least + 1));
  }

  std::mt19937_64 engine_;
  const ClusterOptions cluster_;
  const std::int64_t steps_;
};

std::string test_of(const ClusterOptions& options, const std::vector<ClusterFault>& faults, std::uint64_t seed,
                    const std::string& wrong, const char* judge) {
  std::string text = "// " + wrong + "\nCluster cluster({.hosts = " + std::to_string(options.hosts) +
                     ", .ranks_per_host = " + std::to_string(options.ranks_per_host) +
                     (options.spares > 0 ? ", .spares = " + std::to_string(options.spares) : "") +
                     (options.parallel ? ", .parallel = true" : ", .seed = " + std::to_string(seed)) + "});\n";
  for (const auto& fault : faults) text += fault.to_code() + "\n";
  return text +
         "const auto run = cluster.train(job, settings), undisturbed = cluster.undisturbed(job, settings);\n"
         "CHECK(" +
         judge + "(run, undisturbed) == \"\");\n";
}

}  // namespace

std::string same_steps(const TrainedRun& run, const TrainedRun& undisturbed) {
  if (run.exit_code() != 0)
    return "it ended with exit code " + std::to_string(run.exit_code()) +
           (run.error().empty() ? "" : ": " + run.error());
  const std::set<std::int64_t> applied(run.steps().begin(), run.steps().end());
  for (const auto step : undisturbed.steps()) {
    if (!applied.contains(step)) return "step " + std::to_string(step) + " was not applied";
  }
  return {};
}

std::string same_weights(const TrainedRun& run, const TrainedRun& undisturbed) {
  if (auto wrong = same_steps(run, undisturbed); !wrong.empty()) return wrong;
  const auto difference = had_as_many_ranks(run) ? run.weights().difference(undisturbed.weights())
                                                 : far_off(run.weights(), undisturbed.weights());
  return difference.empty() ? "" : "its weights are not the undisturbed job's: " + difference;
}

Exploration Cluster::explore(const Job& job, const ExploreOptions& options) const {
  const auto undisturbed = this->undisturbed(job, options.settings);
  const auto judge = [&](const TrainedRun& run, const std::vector<ClusterFault>& faults) {
    if (run.exit_code() == exit_code(ErrorCode::state_lost) && may_lose_state(faults, options_)) return std::string();
    return options.judge ? options.judge(run, undisturbed) : same_weights(run, undisturbed);
  };
  Exploration found;
  found.seed = options_.seed;
  found.wrong = judge(undisturbed, {});
  const auto try_faults = [&](std::uint64_t seed, const std::vector<ClusterFault>& faults) {
    auto of_seed = options_;
    of_seed.seed = seed;
    Cluster cluster(of_seed);
    for (const auto& fault : faults_) cluster.add(fault);
    for (const auto& fault : faults) cluster.add(fault);
    ++found.runs;
    return judge(cluster.try_to_train(job, options.settings), cluster.faults());
  };
  while (found.wrong.empty() && found.runs < options.runs) {
    found.seed = options_.seed + static_cast<std::uint64_t>(found.runs);
    found.faults =
        Draw(found.seed, options_, static_cast<std::int64_t>(undisturbed.steps().size())).faults(options.most_faults);
    found.wrong = try_faults(found.seed, found.faults);
  }
  if (found.wrong.empty()) {
    found.faults.clear();
    return found;
  }
  for (std::size_t i = 0; i < found.faults.size();) {
    auto fewer = found.faults;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    if (const auto wrong = try_faults(found.seed, fewer); !wrong.empty()) {
      found.faults = std::move(fewer);
      found.wrong = wrong;
      i = 0;  // one that was needed beside this one may not be any more
    } else {
      ++i;
    }
  }
  if (found.faults.empty() && faults_.empty())
    found.wrong += " (without any fault: is there state outside of the model, a static, a random number?)";
  auto all = faults_;
  all.insert(all.end(), found.faults.begin(), found.faults.end());
  found.test = test_of(options_, all, found.seed, found.wrong, options.judge ? "judge" : "same_weights");
  return found;
}

}  // namespace troupe::testing
